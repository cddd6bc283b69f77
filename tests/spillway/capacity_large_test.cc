// SPDX-License-Identifier: Apache-2.0
//
// `spillway capacity` with a layout of a terabyte: some 100 files, and a million rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/spillway/command.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

using ::testing::IsEmpty;

TEST(LargeCapacity, HoldsSeventyBillionParameters) {
  for (const char* format : {"fp32", "compact"}) {
    const TempFolder folder;
    const Ended ended = RunCommand({"capacity", folder / "a," + (folder / "b"), "--model", "70B",
                                    "--precision", "fp16-amp", "--state-format", format, "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json json = ended.json();
    EXPECT_GT(json["files"], 60);
    EXPECT_GE(1000 * json["written_pages"].get<uint64_t>(), json["pages"].get<uint64_t>());
    EXPECT_GE(json["verified_holes"], json["written_pages"]);
    EXPECT_LE(json["disk_bytes"]["most"], json["disk_bytes"]["expected"]);
    EXPECT_LT(json["memory_bytes"], 1 << 30);
    EXPECT_THAT(FilesIn(folder.path()), IsEmpty());
  }
}

}  // namespace
}  // namespace spillway::test
