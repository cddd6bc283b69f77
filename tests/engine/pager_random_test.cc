// SPDX-License-Identifier: Apache-2.0
//
// Random callers that lease any tile. pager_simulation.h holds the invariants.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/engine/pager_simulation.h"
#include "tests/seed.h"

namespace spillway::engine {
namespace {

void RunMany(const SimulationSetup& setup, uint64_t runs, int steps) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + runs; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    PagerSimulation simulation(setup, seed);
    simulation.Run(steps);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_GT(simulation.grants(), 0);
  }
}

TEST(PagerRandom, OneLeaseAtATimeNeverFails) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 200; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    PagerSimulation simulation({.device_units = 4, .pinned_units = 4}, seed);
    simulation.Run(800);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(simulation.failures(), 0) << "the largest tile fits in both tiers";
  }
}

TEST(PagerRandom, ManyLeasesInTightBudgets) {
  RunMany({.device_units = 9, .pinned_units = 11, .max_held = 4}, 200, 1500);
}

TEST(PagerRandom, AmpleBudgets) {
  RunMany({.device_units = 100, .pinned_units = 100, .max_held = 5}, 50, 1500);
}

// A search for room weighs only a few frames of the arena.
TEST(PagerRandom, SearchesThatLookAtAFewFrames) {
  RunMany({.device_units = 20, .pinned_units = 24, .max_held = 4, .most_weighed = 3}, 200, 1500);
}

TEST(PagerRandom, FailingTransfersLoseNothing) {
  RunMany({.device_units = 8, .pinned_units = 10, .max_held = 2, .failure_rate = 0.1}, 200, 1500);
}

TEST(PagerRandom, CallersThatGiveUpLoseNothing) {
  int withdrawn = 0;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 200; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    SimulationSetup setup{.device_units = 6 + seed % 8, .pinned_units = 8 + seed / 2 % 8};
    setup.max_held = 1 + static_cast<int>(seed % 4);
    setup.failure_rate = seed % 4 == 1 ? 0.05 : 0;
    setup.restores = seed % 4 == 2;
    setup.withdraws = true;
    PagerSimulation simulation(setup, seed);
    simulation.Run(1500);
    if (testing::Test::HasFatalFailure()) return;
    withdrawn += simulation.num_withdrawn();
  }
  std::printf("%d withdrawn\n", withdrawn);
  EXPECT_GT(withdrawn, 200);
}

TEST(PagerRandom, GoingBackToACommitFindsItsBytes) {
  int restores = 0;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 200; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    PagerSimulation simulation({.device_units = 8,
                                .pinned_units = 10,
                                .max_held = 2,
                                .failure_rate = seed % 2 == 0 ? 0.0 : 0.05,
                                .restores = true},
                               seed);
    simulation.Run(1500);
    if (testing::Test::HasFatalFailure()) return;
    restores += simulation.restores();
  }
  EXPECT_GT(restores, 0);
}

// Roles rest in any tier, in budgets that hold them and a little more.
SimulationSetup PlacedSetup(uint64_t seed) {
  std::mt19937_64 random(seed);
  SimulationSetup setup{
      .device_units = 64 + 8, .pinned_units = 64 + 12, .max_held = 1 + static_cast<int>(seed % 3)};
  setup.failure_rate = seed % 4 == 1 ? 0.1 : 0;
  setup.restores = seed % 8 == 2;
  setup.declares = seed % 2 == 1;
  if (seed % 8 == 6) {
    setup.has_store = false;
    setup.pinned_units = 2 * 64;
  }
  for (auto& tier : setup.placement) {
    const auto chosen = static_cast<Tier>(random() % 4);
    if (chosen == Tier::kNvme && !setup.has_store) continue;
    if (chosen <= Tier::kNvme) tier = chosen;
  }
  return setup;
}

TEST(PagerRandom, PlacedTilesRestWhereTheyShould) {
  int failures = 0, grants = 0;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 400; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    const auto setup = PlacedSetup(seed);
    PagerSimulation simulation(setup, seed);
    simulation.Run(1500);
    if (testing::Test::HasFatalFailure()) return;
    failures += setup.failure_rate > 0 ? 0 : simulation.failures();
    grants += simulation.grants();
  }
  std::printf("%d granted, %d refused\n", grants, failures);
  EXPECT_LT(failures, grants / 100);
}

// Tiles that rest in pinned memory are registered while others are leased, so that their frames
// come to lie anywhere, and others lie in their way.
TEST(PagerRandom, TilesThatStayMayComeLater) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 1000; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    SimulationSetup setup{.device_units = 12, .pinned_units = 10 + seed % 20, .num_tiles = 6};
    setup.max_held = 1 + static_cast<int>(seed % 4);
    setup.placement[1] = setup.placement[2] = Tier::kPinned;
    setup.declares = seed % 2 == 0;
    setup.adds_tiles = setup.splits = true;
    PagerSimulation simulation(setup, seed);
    simulation.Run(1500);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PagerRandom, WithoutAStorePinnedMemoryIsTheLastTier) {
  RunMany({.has_store = false, .device_units = 8, .pinned_units = 64, .max_held = 3}, 100, 1500);
}

TEST(PagerRandom, WithoutAStoreAndWithoutRoomTheCallerIsTold) {
  RunMany({.has_store = false, .device_units = 8, .pinned_units = 16, .max_held = 3}, 100, 1500);
}

}  // namespace
}  // namespace spillway::engine
