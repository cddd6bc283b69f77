// SPDX-License-Identifier: Apache-2.0
//
// Tests the order of windows: every epoch takes each window once, and the position alone decides
// which window comes.

#include "tools/trainer/window_order.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace spillway::trainer {
namespace {

std::vector<uint64_t> Epoch(const WindowOrder& order, uint64_t num_windows, uint64_t epoch) {
  std::vector<uint64_t> windows;
  for (uint64_t i = 0; i < num_windows; ++i)
    windows.push_back(order.WindowAt(epoch * num_windows + i));
  return windows;
}

TEST(WindowOrder, SequentialIsFileOrderAndStartsAgain) {
  const WindowOrder order(Order::kSequential, 3, 7);
  EXPECT_EQ(Epoch(order, 7, 0), (std::vector<uint64_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(WindowOrder, EveryShuffledEpochIsAPermutation) {
  for (uint64_t num_windows : {1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000}) {
    const WindowOrder order(Order::kShuffled, num_windows, 42);
    for (uint64_t epoch : {0, 1, 2, 1000000}) {
      std::vector<uint64_t> windows = Epoch(order, num_windows, epoch);
      std::sort(windows.begin(), windows.end());
      for (uint64_t i = 0; i < num_windows; ++i)
        ASSERT_EQ(windows[i], i) << num_windows << " windows, epoch " << epoch;
    }
  }
}

TEST(WindowOrder, EpochsAndSeedsDiffer) {
  const WindowOrder order(Order::kShuffled, 1000, 1);
  EXPECT_NE(Epoch(order, 1000, 0), Epoch(order, 1000, 1));
  EXPECT_NE(Epoch(order, 1000, 0), Epoch(WindowOrder(Order::kShuffled, 1000, 2), 1000, 0));
  EXPECT_EQ(Epoch(order, 1000, 3), Epoch(WindowOrder(Order::kShuffled, 1000, 1), 1000, 3));
}

// A random permutation has one fixed point on average, and about one window that is followed by its
// successor.
TEST(WindowOrder, ShufflesThoroughly) {
  constexpr uint64_t kWindows = 4096;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const std::vector<uint64_t> windows =
        Epoch(WindowOrder(Order::kShuffled, kWindows, seed), kWindows, 0);
    int fixed_points = 0;
    int successions = 0;
    for (uint64_t i = 0; i < kWindows; ++i) {
      fixed_points += windows[i] == i;
      successions += i > 0 && windows[i] == windows[i - 1] + 1;
    }
    EXPECT_LT(fixed_points, 10) << "seed " << seed;
    EXPECT_LT(successions, 10) << "seed " << seed;
  }
}

TEST(WindowOrder, AnyPositionIsReachedDirectly) {
  const WindowOrder order(Order::kShuffled, 12345, 9);
  EXPECT_LT(order.WindowAt(uint64_t{1} << 60), 12345U);
}

}  // namespace
}  // namespace spillway::trainer
