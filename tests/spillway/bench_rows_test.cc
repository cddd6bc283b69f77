// SPDX-License-Identifier: Apache-2.0
//
// What `spillway bench io` computes: of a row its limit, its share of that limit, and its depth;
// and the memory that it may take.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "tools/spillway/bench/io/hashing.h"
#include "tools/spillway/bench/io/room.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_io {
namespace {

Row MakeRow(std::initializer_list<double> ours, std::initializer_list<double> fio,
            std::initializer_list<double> hash) {
  Row row;
  for (const double rate : ours) row.ours.push_back({.bytes_per_second = rate});
  for (const double rate : fio) row.fio.push_back({.bytes_per_second = rate});
  row.hash_bytes_per_second = hash;
  return row;
}

TEST(BenchRows, FioIsTheLimitWhereTheCoresHashFaster) {
  const ShareOfLimit limit = CompareWithLimit(MakeRow({9, 12, 10}, {10, 10, 10}, {100, 100, 100}));
  EXPECT_EQ(limit.limit, Limit::kFio);
  EXPECT_EQ(limit.limit_bytes_per_second, 10);
  EXPECT_EQ(limit.share.low, 0.9);
  EXPECT_EQ(limit.share.median, 1);
  EXPECT_EQ(limit.share.high, 1.2);
}

TEST(BenchRows, NineTenthsOfHashingIsTheLimitWhereItIsLess) {
  const ShareOfLimit limit = CompareWithLimit(MakeRow({9, 9, 9}, {20, 5, 20}, {10, 10, 10}));
  EXPECT_EQ(limit.limit, Limit::kHash) << "of two rounds in three";
  EXPECT_EQ(limit.limit_bytes_per_second, 9);
  EXPECT_EQ(limit.share.median, 1);
  EXPECT_EQ(limit.share.high, 9.0 / 5);
}

TEST(BenchRows, RoundsAfterFioFailedDoNotCount) {
  const Row row = MakeRow({9, 20, 30}, {10}, {11, 11, 11});
  const ShareOfLimit limit = CompareWithLimit(row);
  EXPECT_EQ(limit.limit, Limit::kHash) << "of the round that fio did: 9.9";
  EXPECT_DOUBLE_EQ(limit.limit_bytes_per_second, 9.9);
  EXPECT_DOUBLE_EQ(limit.share.high, 9 / 9.9);
  EXPECT_EQ(CompareWithLimit(MakeRow({9, 20, 30}, {10}, {100, 11, 11})).limit, Limit::kFio);
  EXPECT_DOUBLE_EQ(ShareOfFio(row, row.fio).high, 0.9);
}

// It hashes no more than it may, from several threads, and goes round its memory.
TEST(BenchRows, AHashLoadKeepsToItsRate) {
  const std::vector<std::byte> memory(3 * kMiB);
  constexpr double kRate = 200e6;
  constexpr int kThreads = 2;
  const double begin = base::Now();
  HashLoad load(memory, kRate, kThreads);
  while (load.hashed_bytes() < 4 * memory.size())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto hashed = static_cast<double>(load.hashed_bytes());
  EXPECT_LE(hashed, kRate * (base::Now() - begin) + kThreads * kMiB);
}

TEST(BenchRows, WithoutFioHashingIsAllThatIsKnown) {
  EXPECT_EQ(CompareWithLimit(MakeRow({9}, {}, {20})).limit, Limit::kHash);
  EXPECT_EQ(CompareWithLimit(MakeRow({9}, {}, {})).limit, Limit::kNone);
  EXPECT_EQ(CompareWithLimit(MakeRow({}, {}, {})).limit, Limit::kNone);
}

TEST(BenchRows, TheDepthIsTwiceWhatTheQueuesHold) {
  const io::DeviceProfile profile = {.request_bytes = 2 * kMiB,
                                     .read_depth = 16,
                                     .write_depth = 8,
                                     .mixed_write_depth = 2,
                                     .read_bytes_per_second = 1,
                                     .write_bytes_per_second = 1};
  RowOptions options = {.size_bytes = 1 << 30, .memory_bytes = 1 << 30, .profiles = {profile}};
  EXPECT_EQ(CalibratedDepth(options, Op::kRead, kMiB), 64);
  EXPECT_EQ(CalibratedDepth(options, Op::kWrite, 4 * kMiB), 8);
  EXPECT_EQ(CalibratedDepth(options, Op::kMixed, kMiB), 96);
  options.profiles.push_back(profile);
  EXPECT_EQ(CalibratedDepth(options, Op::kRead, kMiB), 128);
  options.memory_bytes = 64 * kMiB;
  EXPECT_EQ(CalibratedDepth(options, Op::kRead, kMiB), 64) << "all of the memory";
  options.profiles = {};
  EXPECT_EQ(CalibratedDepth(options, Op::kRead, kMiB), 4);
}

TEST(BenchRows, NoRowIsDeeperThanItsMemoryAndNoneIsThereTwice) {
  for (const bool full : {false, true}) {
    size_t num_rows_before = 0;
    for (const uint64_t memory : {4 * kMiB, 64 * kMiB, 100 * kMiB, 1024 * kMiB}) {
      const RowOptions options = {.size_bytes = 1 << 30, .memory_bytes = memory, .full = full};
      const std::vector<RowSpec> rows = MakeRows(options);
      std::set<std::string> names;
      for (const RowSpec& row : rows) {
        EXPECT_GE(row.depth, 1) << Describe(row);
        EXPECT_LE(static_cast<uint64_t>(row.depth) * row.block_bytes, row.memory_bytes)
            << Describe(row);
        // A main row may move the same blocks as a row that is cut short.
        if (row.most_seconds < 1e6) {
          EXPECT_TRUE(names.insert(Describe(row)).second) << Describe(row);
        }
      }
      EXPECT_GE(rows.size(), num_rows_before) << "with more memory";
      num_rows_before = rows.size();
    }
  }
}

TEST(BenchRoom, MemoryIsCutToWhatIsAvailableAndThatIsSaid) {
  std::string notes;
  const auto note = [&](std::string_view text) { notes += text; };
  const auto little = CutToAvailableMemory(uint64_t{70} << 20, 1, note);
  ASSERT_TRUE(little.ok()) << little.status();
  EXPECT_EQ(*little, uint64_t{68} << 20) << "whole 4 MiB";
  EXPECT_EQ(notes, "");
  const auto much = CutToAvailableMemory(uint64_t{1} << 60, 2, note);
  ASSERT_TRUE(much.ok()) << much.status();
  EXPECT_LT(*much, uint64_t{1} << 50);
  EXPECT_NE(notes.find("memory to cycle through is cut to"), std::string::npos) << notes;
}

}  // namespace
}  // namespace spillway::bench_io
