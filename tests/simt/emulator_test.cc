// SPDX-License-Identifier: Apache-2.0
//
// The emulator: what it computes, and what it reports of small kernels that are wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "src/simt/emulated_block.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"

namespace spillway::simt {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kSmallBlock = 32;

// A kernel of one block, or of several, whose threads run `body(block, array)`.
template <class Body>
struct OfBody {
  static constexpr int kThreads = kSmallBlock;
  template <class Block>
  struct Shared {
    typename Block::template Array<float, kSmallBlock> array;
  };

  Body body;
  int64_t num_blocks = 1;

  int64_t blocks() const { return num_blocks; }
  template <class Block>
  void Run(Block& block, Shared<Block>& shared) const {
    body(block, shared.array);
  }
};
template <class Body>
OfBody(Body, int64_t) -> OfBody<Body>;
template <class Body>
OfBody(Body) -> OfBody<Body>;

using Array = EmulatedArray<float, kSmallBlock>;

class EmulatorTest : public testing::Test {
 protected:
  template <class Body>
  std::vector<std::string> Reports(const Body& body, int64_t blocks = 1) {
    return emulator_.Launch(OfBody<Body>{body, blocks});
  }

  Emulator emulator_{test::Seed()};
};

// --- What a launch does ---

TEST_F(EmulatorTest, EachThreadOfEachBlockRunsOnce) {
  std::vector<int> runs(5 * kSmallBlock);
  EXPECT_THAT(Reports(
                  [&](EmulatedBlock& block, Array&) {
                    ++runs[static_cast<size_t>(block.index() * kSmallBlock + block.thread())];
                  },
                  5),
              IsEmpty());
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_F(EmulatorTest, AGridWithoutBlocksRunsNothing) {
  EXPECT_THAT(Reports([](EmulatedBlock&, Array&) { FAIL(); }, 0), IsEmpty());
}

TEST_F(EmulatorTest, ABarrierSeparatesWritesFromReads) {
  std::vector<float> seen(kSmallBlock);
  const auto rotate = [&](EmulatedBlock& block, Array& array) {
    const int thread = block.thread();
    for (int round = 0; round < 3; ++round) {
      array.Write(thread, static_cast<float>(round * 100 + thread));
      block.Sync();
      seen[static_cast<size_t>(thread)] = array.Read((thread + 1) % kSmallBlock);
      block.Sync();
      EXPECT_EQ(seen[static_cast<size_t>(thread)],
                static_cast<float>(round * 100 + (thread + 1) % kSmallBlock));
    }
  };
  EXPECT_THAT(Reports(rotate, 3), IsEmpty());
}

// Before the first barrier, between barriers, and of blocks.
TEST_F(EmulatorTest, OrdersAreRandomAndFollowFromTheSeed) {
  const auto order_of = [](uint64_t seed) {
    std::vector<int64_t> order;
    const auto note = [&](EmulatedBlock& block, Array&) {
      for (int round = 0; round < 2; ++round) {
        order.push_back(block.index() * 100 + block.thread());
        block.Sync();
      }
    };
    EXPECT_THAT(Emulator(seed).Launch(OfBody<decltype(note)>{note, 3}), IsEmpty());
    return order;
  };
  const uint64_t seed = test::Seed();
  std::set<std::vector<int64_t>> first, second, blocks;
  for (uint64_t i = 0; i < 20; ++i) {
    const std::vector<int64_t> order = order_of(seed + i);
    EXPECT_EQ(order, order_of(seed + i));
    std::vector<int64_t> threads;
    for (const int64_t at : order) threads.push_back(at % 100);
    first.emplace(threads.begin(), threads.begin() + kSmallBlock);
    second.emplace(threads.begin() + kSmallBlock, threads.begin() + 2 * kSmallBlock);
    blocks.insert({order[0] / 100, order[2 * kSmallBlock] / 100});
    EXPECT_NE(*first.begin(), *second.begin());
  }
  EXPECT_THAT(first, SizeIs(20));
  EXPECT_THAT(second, SizeIs(20));
  EXPECT_GT(blocks.size(), 2u);  // of six
}

TEST_F(EmulatorTest, ThreadsShareARangeOfElements) {
  constexpr int64_t kBegin = 7;
  for (const int64_t n : {0, 1, 31, 32, 33, 100}) {
    std::vector<int> taken(200), expected(200);
    std::fill_n(expected.begin() + kBegin, n, 1);
    const auto take = [&](EmulatedBlock& block, Array&) {
      ForElements<kSmallBlock>(block, kBegin, kBegin + n,
                               [&](int64_t i) { ++taken[static_cast<size_t>(i)]; });
    };
    EXPECT_THAT(Reports(take), IsEmpty());
    EXPECT_EQ(taken, expected) << n;
  }
}

// Of each launch the reports are its own.
TEST_F(EmulatorTest, ALaunchMayBeWithinAnother) {
  const auto reads = [](EmulatedBlock& block, Array& array) {
    if (block.thread() == 5) array.Read(1);
  };
  const auto launches = [&](EmulatedBlock& block, Array& array) {
    if (block.thread() != 3) return;
    Emulator inner(test::Seed());
    EXPECT_THAT(inner.Launch(OfBody<decltype(reads)>{reads}),
                ElementsAre(HasSubstr("thread 5 reads element 1 ")));
    array.Read(2);
  };
  EXPECT_THAT(Reports(launches), ElementsAre(HasSubstr("thread 3 reads element 2 ")));
}

// Reduces twice with the same shared memory.
struct SumsAndLargest {
  // The thread sanitizer has room for 255 threads and fibers.
  static constexpr int kThreads = SPILLWAY_IS_THREAD_SANITIZED ? 128 : 256;
  template <class Block>
  struct Shared {
    Reduction<Block, double, kThreads> sums;
    Reduction<Block, float, kThreads> largest;
  };
  double* sums;
  float* largest;
  int64_t blocks() const { return 2; }
  void Run(EmulatedBlock& block, Shared<EmulatedBlock>& shared) const {
    const int64_t at = block.index() * kThreads + block.thread();
    sums[at] = BlockSum(block, shared.sums, static_cast<double>(at));
    sums[at] += BlockSum(block, shared.sums, 1.0);
    largest[at] = BlockMax(block, shared.largest, static_cast<float>(-at));
  }
};

TEST_F(EmulatorTest, SumAndLargestOfABlock) {
  constexpr int kThreads = SumsAndLargest::kThreads;
  constexpr double kSum = kThreads * (kThreads - 1) / 2 + kThreads;  // of the first block
  std::vector<double> sums(2 * kThreads);
  std::vector<float> largest(2 * kThreads);
  EXPECT_THAT(emulator_.Launch(SumsAndLargest{sums.data(), largest.data()}), IsEmpty());
  for (size_t i = 0; i < 2 * kThreads; ++i) {
    EXPECT_EQ(sums[i], i < kThreads ? kSum : kSum + kThreads * kThreads) << i;
    EXPECT_EQ(largest[i], i < kThreads ? 0.0f : -float{kThreads}) << i;
  }
}

// --- What it reports ---

TEST_F(EmulatorTest, ReportsOverruns) {
  const auto one_past = [](EmulatedBlock& block, Array& array) {
    if (block.thread() == 3) array.Write(kSmallBlock, 1);
  };
  EXPECT_THAT(Reports(one_past),
              ElementsAre("block 0: overrun: thread 3 accesses element 32 of an array of 32"));
  const auto before = [](EmulatedBlock& block, Array& array) {
    if (block.thread() != 3) return;
    EXPECT_TRUE(std::isnan(array.Read(-1)));
  };
  EXPECT_THAT(Reports(before), ElementsAre(HasSubstr("overrun: thread 3 accesses element -1")));
}

TEST_F(EmulatorTest, ReportsReadsOfUnwrittenElements) {
  const auto reads = [](EmulatedBlock& block, Array& array) {
    if (block.thread() == 5) array.Write(1, 2);
    block.Sync();
    if (block.thread() == 5) {
      EXPECT_EQ(array.Read(1), 2);
      EXPECT_TRUE(std::isnan(array.Read(7)));
    }
  };
  EXPECT_THAT(Reports(reads),
              ElementsAre("block 0: unwritten: thread 5 reads element 7 of an array of 32, which "
                          "no thread has written"));
}

// What one block has written is undefined in the next.
TEST_F(EmulatorTest, EachBlockStartsUnwritten) {
  bool is_first = true;
  const auto reads = [&](EmulatedBlock& block, Array& array) {
    if (block.thread() != 0) return;
    if (!is_first) {
      EXPECT_TRUE(std::isnan(array.Read(0)));
    }
    is_first = false;
    array.Write(0, 1);
  };
  EXPECT_THAT(Reports(reads, 2), ElementsAre(HasSubstr("unwritten: thread 0 reads element 0")));
}

TEST_F(EmulatorTest, ReportsAWriteAndAReadWithNoBarrierBetween) {
  for (int i = 0; i < 10; ++i) {  // whichever comes first
    const auto race = [](EmulatedBlock& block, Array& array) {
      if (block.thread() == 0) array.Write(0, 1);
      block.Sync();
      if (block.thread() == 1) array.Write(0, 2);
      if (block.thread() == 2) array.Read(0);
    };
    EXPECT_THAT(Reports(race),
                ElementsAre(AllOf(HasSubstr("race: thread "), HasSubstr("thread 1"),
                                  HasSubstr("thread 2"), HasSubstr("with no barrier between"))));
  }
}

// The writer is one of the readers.
TEST_F(EmulatorTest, ReportsAWriteAfterSeveralReads) {
  for (int i = 0; i < 20; ++i) {
    const auto race = [](EmulatedBlock& block, Array& array) {
      const int thread = block.thread();
      if (thread == 0) array.Write(0, 1);
      block.Sync();
      if (thread == 1 || thread == 2) array.Read(0);
      if (thread == 2) array.Write(0, 2);
    };
    EXPECT_THAT(Reports(race), ElementsAre(HasSubstr("race: ")));
  }
}

TEST_F(EmulatorTest, ReportsTwoWritesWithNoBarrierBetween) {
  const auto race = [](EmulatedBlock& block, Array& array) {
    if (block.thread() >= 30) array.Write(0, 1);
  };
  EXPECT_THAT(Reports(race), ElementsAre(AllOf(HasSubstr("race: thread "), HasSubstr("writes"))));
}

TEST_F(EmulatorTest, OneThreadMayReadAndWriteAndAllMayRead) {
  const auto right = [](EmulatedBlock& block, Array& array) {
    const int thread = block.thread();
    array.Write(thread, 1);
    array.Write(thread, array.Read(thread) + array.Read(thread));
    block.Sync();
    for (int i = 0; i < kSmallBlock; ++i) EXPECT_EQ(array.Read(i), 2);
    block.Sync();
    array.Write(kSmallBlock - 1 - thread, 3);
  };
  EXPECT_THAT(Reports(right), IsEmpty());
}

TEST_F(EmulatorTest, ReportsABarrierThatAThreadDoesNotReach) {
  bool others_end = false;
  const auto ends = [&](EmulatedBlock& block, Array&) {
    if (block.thread() == 9) return;
    block.Sync();
    if (block.thread() == 8) others_end = true;
  };
  EXPECT_THAT(Reports(ends),
              ElementsAre(AllOf(HasSubstr("block 0: lost barrier: thread 0 waits at "),
                                HasSubstr("emulator_test.cc:"), HasSubstr("thread 9 has ended"))));
  EXPECT_TRUE(others_end);
}

TEST_F(EmulatorTest, ReportsThreadsThatWaitAtTwoBarriers) {
  const auto apart = [](EmulatedBlock& block, Array&) {
    if (block.thread() < 16) {
      block.Sync();
    } else {
      block.Sync();
    }
  };
  EXPECT_THAT(Reports(apart), ElementsAre(AllOf(HasSubstr("lost barrier: thread 0 waits at "),
                                                HasSubstr("thread 16 waits at "))));
}

TEST_F(EmulatorTest, ReportsThreadsThatWaitAtOneLineOfTwoFiles) {
  const auto apart = [](EmulatedBlock& block, Array&) {
    block.Sync(block.thread() < 16 ? "one.h" : "other.h", 7);
  };
  EXPECT_THAT(
      Reports(apart),
      ElementsAre(HasSubstr("thread 0 waits at one.h:7, and thread 16 waits at other.h:7")));
}

// After a lost barrier, the other blocks are watched again.
TEST_F(EmulatorTest, EachBlockIsWatched) {
  const auto ends = [](EmulatedBlock& block, Array& array) {
    if (block.thread() == 9) return;
    block.Sync();
    array.Read(0);  // muted
    block.Sync();
  };
  const std::vector<std::string> reports = Reports(ends, 3);
  EXPECT_THAT(reports, SizeIs(3));
  EXPECT_THAT(reports, testing::Each(HasSubstr("lost barrier")));
}

TEST_F(EmulatorTest, ReportsAreFewAndEndWithTheirLaunch) {
  const auto reads = [](EmulatedBlock& block, Array& array) { array.Read(block.thread()); };
  EXPECT_THAT(Reports(reads), SizeIs(EmulatedRun::kMostReports));
  EXPECT_THAT(Reports([](EmulatedBlock&, Array&) {}), IsEmpty());
}

TEST_F(EmulatorTest, WholeNumbersStartWithAllBitsSet) {
  EmulatedArray<int32_t, 1> array;
  const auto reads = [&](EmulatedBlock& block, Array&) {
    if (block.thread() != 0) return;
    EXPECT_EQ(array.Read(0), -1);
  };
  EXPECT_THAT(Reports(reads), ElementsAre(HasSubstr("unwritten")));
}

}  // namespace
}  // namespace spillway::simt
