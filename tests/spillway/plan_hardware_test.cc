// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "gmock/gmock.h"
#include "tools/spillway/plan/hardware.h"

namespace spillway::command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Gpu, IsFoundByItsName) {
  for (const Gpu& gpu : Gpus()) {
    const auto found = FindGpu(gpu.name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->title, gpu.title);
    EXPECT_GT(gpu.flops, 1e13);
    EXPECT_GT(gpu.memory_bytes, uint64_t{1} << 33);
    EXPECT_FALSE(gpu.source.empty());
  }
  EXPECT_EQ(FindGpu("H200")->name, "h200");
  const auto unknown = FindGpu("h300");
  EXPECT_TRUE(absl::IsNotFound(unknown.status()));
  EXPECT_THAT(unknown.status().message(), AllOf(HasSubstr("'h300'"), HasSubstr("rtx4090")));
}

TEST(Drives, AreParsed) {
  const auto eight = ParseDrives("8x7GB/s:3.8TB");
  ASSERT_TRUE(eight.ok()) << eight.status();
  EXPECT_EQ(eight->count, 8);
  EXPECT_EQ(eight->read, 7e9);
  EXPECT_EQ(eight->write, 3.5e9);
  EXPECT_EQ(eight->total_bytes(), 8 * 3'800'000'000'000u);
  const auto both = ParseDrives("2x7/5.5GB/s");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->read, 7e9);
  EXPECT_EQ(both->write, 5.5e9);
  EXPECT_EQ(both->size_bytes, 0u);
  EXPECT_EQ(ParseDrives("500MB/s")->count, 1);
  EXPECT_EQ(ParseDrives("3GB/500MB/s")->write, 500e6);
  EXPECT_EQ(ParseDrives("1GiB/s")->read, 1024.0 * 1024 * 1024);
}

TEST(Drives, NonsenseIsNamed) {
  for (const char* text : {"",
                           "x",
                           "0x7GB/s",
                           "-1x7GB/s",
                           "8x",
                           "8xGB/s",
                           "8x7GB",
                           "8x0GB/s",
                           "8x-7GB/s",
                           "8x7GB/s:",
                           "8x7GB/s:0",
                           "8x7GB/s:lots",
                           "8xnanGB/s",
                           "8xinfGB/s",
                           "8x7//5GB/s",
                           "9999999999999999999x7GB/s",
                           "2000x7GB/s",
                           "8x7GB/s:9999999999TB",
                           "8x99999999999TB/s",
                           "8x7/0GB/s"}) {
    const auto drives = ParseDrives(text);
    ASSERT_TRUE(absl::IsInvalidArgument(drives.status())) << text;
    EXPECT_THAT(drives.status().message(), HasSubstr("The form is 8x7/5GB/s:3.8TB")) << text;
  }
}

TEST(Rate, IsParsed) {
  EXPECT_EQ(*ParseRate("25GB/s"), 25e9);
  for (const char* text : {"25GB", "25", "0GB/s", "GB/s", "nan/s", "1e3GB/s"})
    EXPECT_FALSE(ParseRate(text).ok()) << text;
}

}  // namespace
}  // namespace spillway::command
