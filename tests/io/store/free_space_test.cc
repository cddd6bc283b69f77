// SPDX-License-Identifier: Apache-2.0
//
// Tests free space as text, and its changes in the catalog.

#include "io/store/free_space.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using Runs = std::vector<UnitRun>;

TEST(FreeSpaceText, IsReadAsItWasWritten) {
  for (const Runs& runs : {Runs{{0, 1}}, Runs{{0, kChunkUnits}}, Runs{{3, 4}, {8, 1}, {100, 16284}},
                           Runs{{kChunkUnits - 1, 1}}}) {
    EXPECT_EQ(ParseRuns(FormatRuns(runs)), runs) << FormatRuns(runs);
  }
  EXPECT_EQ(FormatRuns({{3, 4}, {8, 1}}), "3+4 8+1");
}

TEST(FreeSpaceText, IsRefusedIfItIsNotExactlySo) {
  for (const char* text : {"", " ", "0", "0+", "+1", "0+0", "0+16385", "16384+1", "1+1 ", " 1+1",
                           "1+1  3+1", "1+1,3+1", "1+1 2+1", "3+1 1+1", "-1+1", "0x1+1", "1+1 3",
                           "4294967296+1", "1+4294967297"}) {
    EXPECT_EQ(ParseRuns(text), std::nullopt) << text;
  }
}

class FreeSpaceChangeTest : public ::testing::Test {
 protected:
  FreeSpaceChangeTest() {
    database_ = *SqliteDatabase::Open(path_, SqliteDatabase::Mode::kCreate);
    EXPECT_TRUE(database_
                    ->Execute("CREATE TABLE free_space (device, segment, chunk, free_bytes, runs, "
                              "PRIMARY KEY (device, segment, chunk))")
                    .ok());
  }
  std::string Table() {
    return RunSql(
        path_,
        "SELECT coalesce(group_concat(segment || '/' || chunk || ': ' || runs || ' = ' || "
        "(free_bytes / 4096), '; '), '') FROM free_space");
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "database";
  std::unique_ptr<SqliteDatabase> database_;
};

TEST_F(FreeSpaceChangeTest, TakesAndGivesAcrossChunks) {
  FreeSpaceChange made(database_.get());
  made.Add(0, 0, 0, 2 * kChunkBytes);
  // The order of the calls does not matter: added space counts before space is taken.
  made.Take(0, 0, kChunkBytes - 2 * kIoAlignment, 4 * kIoAlignment);
  ASSERT_TRUE(made.Apply().ok());
  EXPECT_EQ(Table(), "0/0: 0+16382 = 16382; 0/1: 2+16382 = 16382");
  FreeSpaceChange change(database_.get());
  change.Give({0, 0, kChunkBytes - kIoAlignment, 2 * kIoAlignment});
  change.Take(0, 0, 0, kIoAlignment);
  change.Take(0, 0, 2 * kIoAlignment, kIoAlignment);
  change.Take(0, 0, kChunkBytes + 2 * kIoAlignment, kChunkBytes - 2 * kIoAlignment);
  ASSERT_TRUE(change.Apply().ok());
  EXPECT_EQ(Table(), "0/0: 1+1 3+16379 16383+1 = 16381; 0/1: 0+1 = 1");
}

TEST_F(FreeSpaceChangeTest, AChunkWithNothingFreeHasNoRow) {
  FreeSpaceChange change(database_.get());
  change.Add(0, 5, 0, kChunkBytes);
  for (uint64_t i = 0; i < kChunkBytes; i += 4 * kIoAlignment)
    change.Take(0, 5, i, 4 * kIoAlignment);
  ASSERT_TRUE(change.Apply().ok());
  EXPECT_EQ(Table(), "");
}

TEST_F(FreeSpaceChangeTest, TakingWhatIsTakenAndGivingWhatIsFreeAreDataLoss) {
  FreeSpaceChange made(database_.get());
  made.Add(0, 0, 0, 8 * kIoAlignment);
  made.Take(0, 0, 0, 4 * kIoAlignment);
  ASSERT_TRUE(made.Apply().ok());
  FreeSpaceChange taken(database_.get());
  taken.Take(0, 0, 3 * kIoAlignment, 2 * kIoAlignment);
  EXPECT_TRUE(absl::IsDataLoss(taken.Apply()));
  FreeSpaceChange beyond(database_.get());
  beyond.Take(0, 0, 7 * kIoAlignment, 2 * kIoAlignment);
  EXPECT_TRUE(absl::IsDataLoss(beyond.Apply()));
  FreeSpaceChange given(database_.get());
  given.Give({0, 0, 3 * kIoAlignment, 2 * kIoAlignment});
  EXPECT_TRUE(absl::IsDataLoss(given.Apply()));
  FreeSpaceChange twice(database_.get());
  twice.Give({0, 0, 0, kIoAlignment});
  twice.Give({0, 0, 0, kIoAlignment});
  EXPECT_TRUE(absl::IsDataLoss(twice.Apply()));
}

}  // namespace
}  // namespace spillway::io
