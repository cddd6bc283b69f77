// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/use_queue.h"

#include <gtest/gtest.h>

namespace spillway::engine {
namespace {

TEST(UseQueue, KnowsTheNextUseOfATileInATier) {
  UseQueue uses;
  uses.Declare(7, Tier::kDevice, Access::kRead);
  uses.Declare(8, Tier::kDevice, Access::kRead);
  uses.Declare(7, Tier::kPinned, Access::kRead);
  uses.Declare(7, Tier::kDevice, Access::kRead);
  const uint64_t start = uses.now();
  EXPECT_EQ(uses.NextUse(7, Tier::kDevice), start);
  EXPECT_EQ(uses.NextUse(7, Tier::kPinned), start + 2);
  EXPECT_EQ(uses.NextUse(9, Tier::kDevice), UseQueue::kNever);

  uses.OnUse(7, Tier::kDevice);
  EXPECT_EQ(uses.now(), start + 1);
  EXPECT_EQ(uses.NextUse(7, Tier::kDevice), start + 3);
}

TEST(UseQueue, AUseSkipsThoseThatDidNotCome) {
  UseQueue uses;
  for (TileIndex tile = 0; tile < 10; ++tile) uses.Declare(tile, Tier::kDevice, Access::kRead);
  uses.OnUse(5, Tier::kDevice);
  EXPECT_EQ(uses.NextUse(3, Tier::kDevice), UseQueue::kNever);
  ASSERT_NE(uses.PrefetchCandidate(), nullptr);
  EXPECT_EQ(uses.PrefetchCandidate()->tile, 6u);
}

TEST(UseQueue, AnUndeclaredUseChangesNothing) {
  UseQueue uses;
  uses.Declare(1, Tier::kDevice, Access::kRead);
  uses.OnUse(2, Tier::kDevice);
  uses.OnUse(1, Tier::kPinned);
  EXPECT_EQ(uses.NextUse(1, Tier::kDevice), uses.now());
}

TEST(UseQueue, AUseFarAheadIsNotTheOneDeclared) {
  UseQueue uses;
  for (TileIndex tile = 0; tile < 2 * UseQueue::kMaxSkip; ++tile)
    uses.Declare(tile, Tier::kDevice, Access::kRead);
  const uint64_t before = uses.now();
  uses.OnUse(UseQueue::kMaxSkip + 1, Tier::kDevice);
  EXPECT_EQ(uses.now(), before);
}

TEST(UseQueue, ManyUsesFarAheadShowThatTheOnesBeforeWillNotCome) {
  constexpr TileIndex kSkip = UseQueue::kMaxSkip, kTiles = 4 * kSkip;
  UseQueue uses;
  for (TileIndex tile = 0; tile < kTiles; ++tile) uses.Declare(tile, Tier::kDevice, Access::kRead);
  const uint64_t begin = uses.now();
  for (TileIndex tile = 2 * kSkip; tile < 3 * kSkip; ++tile) {
    uses.OnUse(tile, Tier::kDevice);
    EXPECT_EQ(uses.now(), begin);
  }
  uses.OnUse(3 * kSkip, Tier::kDevice);
  EXPECT_EQ(uses.now(), begin + 3 * kSkip + 1);
  EXPECT_EQ(uses.PrefetchCandidate()->tile, 3 * kSkip + 1);
}

TEST(UseQueue, PrefetchGoesAheadOnceAndNeverBehindTheUses) {
  UseQueue uses;
  for (TileIndex tile = 0; tile < 4; ++tile) uses.Declare(tile, Tier::kDevice, Access::kRead);
  uses.AdvancePrefetch();
  EXPECT_EQ(uses.PrefetchCandidate()->tile, 1u);
  uses.OnUse(2, Tier::kDevice);
  EXPECT_EQ(uses.PrefetchCandidate()->tile, 3u);
  uses.AdvancePrefetch();
  EXPECT_EQ(uses.PrefetchCandidate(), nullptr);
}

TEST(UseQueue, ClearForgetsEverything) {
  UseQueue uses;
  uses.Declare(1, Tier::kDevice, Access::kRead);
  uses.Clear();
  EXPECT_EQ(uses.NextUse(1, Tier::kDevice), UseQueue::kNever);
  EXPECT_EQ(uses.PrefetchCandidate(), nullptr);
  uses.Declare(1, Tier::kDevice, Access::kRead);
  EXPECT_EQ(uses.NextUse(1, Tier::kDevice), uses.now());
}

}  // namespace
}  // namespace spillway::engine
