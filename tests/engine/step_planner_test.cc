// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <new>
#include <optional>

#include "tests/engine/no_new_threads.h"

namespace spillway::engine {
namespace {

constexpr plan::TileIndex kTiles = 8;
constexpr plan::PlanOptions kBudgets{.device_bytes = 4096, .pinned_bytes = 4 * 4096};

class StepPlannerTest : public testing::Test {
 protected:
  void AddTiles(plan::TileIndex num_tiles, uint64_t size_bytes = 4096) {
    for (plan::TileIndex i = 0; i < num_tiles; ++i) {
      const plan::TileIndex tile = tiles_.size();
      tiles_.emplace_back().size_bytes = size_bytes;
      with_bytes_.Set(tile);
      planner_.AddTile(tile, 0);
    }
  }
  // Ends a step and waits for the plan of the next.
  absl::Status EndStep(double now) {
    absl::Status ended = planner_.EndStep(now);
    if (!ended.ok()) return ended;
    (void)Next();  // requests it
    if (absl::Status made = service_.Wait(); !made.ok()) return made;
    return Next().status();
  }
  absl::StatusOr<std::shared_ptr<PlanFollower>> Next() {
    return planner_.Next(
        {.with_bytes = with_bytes_, .reserved_changes = reserved_changes_, .all_fit = all_fit_});
  }

  // Reads tiles 1 to 6 in pinned memory, one after the other. Returns whether the plan of that step
  // was made anew after it.
  bool IsPlannedAnew() {
    for (plan::TileIndex tile = 1; tile < kTiles - 1; ++tile) {
      planner_.Recording()->Acquire(tile, Tier::kPinned, Access::kRead, 0, 0);
      planner_.Recording()->Release(tile, Tier::kPinned, Access::kRead, 0);
    }
    const uint64_t before = planner_.plans_made();
    const absl::Status ended = EndStep(0);
    EXPECT_TRUE(ended.ok()) << ended;
    return planner_.plans_made() > before;
  }

  TileTable tiles_;
  plan::TileBits with_bytes_;
  uint64_t reserved_changes_ = 0;
  bool all_fit_ = false;
  PlanService service_{kBudgets};
  StepPlanner planner_{kBudgets, &tiles_, &service_};
};

TEST_F(StepPlannerTest, AStepThatCannotBePlannedHasNoTimeBound) {
  AddTiles(kTiles);
  double now = 0;
  const auto pass = [&](bool ends) {
    for (plan::TileIndex tile = 0; tile < kTiles; ++tile) {
      planner_.Recording()->Acquire(tile, Tier::kPinned, Access::kRead, now, now);
      now += 1;
      if (ends) planner_.Recording()->Release(tile, Tier::kPinned, Access::kRead, now);
    }
    return EndStep(now);
  };
  const plan::Rates rates;
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  EXPECT_EQ(planner_.last_step().At(rates).computing, 8);
  EXPECT_TRUE(absl::IsInvalidArgument(pass(/*ends=*/false)));
  EXPECT_EQ(planner_.last_step().At(rates).seconds, 0);
  // The failed step does not count as the predecessor of the next step.
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  EXPECT_EQ(planner_.last_step().At(rates).computing, 8);
}

TEST_F(StepPlannerTest, AnEndWithoutAStepKeepsTheTimeBound) {
  AddTiles(1);
  planner_.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 0, 0);
  planner_.Recording()->Release(0, Tier::kPinned, Access::kRead, 1);
  ASSERT_TRUE(EndStep(1).ok());
  ASSERT_TRUE(EndStep(2).ok());
  EXPECT_EQ(planner_.last_step().At({}).computing, 1);
}

TEST_F(StepPlannerTest, TheTimeBoundIsOfTheComputingOfTheStepThatEndedLast) {
  AddTiles(kTiles);
  double now = 0;
  plan::Rates rates;
  rates.link.fill(std::numeric_limits<double>::infinity());
  rates.nvme = rates.checksum = std::numeric_limits<double>::infinity();
  for (const double seconds : {1.0, 3.0, 2.0}) {
    for (plan::TileIndex tile = 0; tile < kTiles; ++tile) {
      const double asked = now;
      now += 10;  // time spent waiting
      planner_.Recording()->Acquire(tile, Tier::kPinned, Access::kRead, asked, now);
      now += seconds;
      planner_.Recording()->Release(tile, Tier::kPinned, Access::kRead, now);
    }
    ASSERT_TRUE(EndStep(now).ok());
    EXPECT_EQ(planner_.last_step().At(rates).computing, kTiles * seconds);
    EXPECT_EQ(planner_.last_step().At(rates).seconds, kTiles * seconds);
  }
}

TEST_F(StepPlannerTest, ATileThatGetsOrLosesItsBytesVoidsThePlansThatUseIt) {
  AddTiles(kTiles);
  ASSERT_TRUE(IsPlannedAnew());
  EXPECT_FALSE(IsPlannedAnew());
  with_bytes_.Set(0, false);  // the step does not use it
  EXPECT_FALSE(IsPlannedAnew());
  with_bytes_.Set(1, false);
  EXPECT_TRUE(IsPlannedAnew());
  EXPECT_FALSE(IsPlannedAnew());
}

TEST_F(StepPlannerTest, APlanInWhichAllTilesFitIsVoidOnceTheyDoNot) {
  AddTiles(kTiles);
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile) {
    tiles_[tile].own_place = tile * 4096;
    if (tile >= 3) tiles_[tile].rest = Tier::kNvme;  // the budget has places for three
  }
  all_fit_ = true;
  ASSERT_TRUE(IsPlannedAnew());
  EXPECT_FALSE(IsPlannedAnew());
  all_fit_ = false;
  EXPECT_TRUE(IsPlannedAnew());
}

TEST_F(StepPlannerTest, AReservedFrameThatIsTakenOrGivenBackVoidsThePlans) {
  AddTiles(kTiles);
  ASSERT_TRUE(IsPlannedAnew());
  ++reserved_changes_;
  EXPECT_TRUE(IsPlannedAnew());
  EXPECT_FALSE(IsPlannedAnew());
}

TEST_F(StepPlannerTest, ANewTileThatWillRestInMemoryVoidsThePlanThatIsBeingMade) {
  AddTiles(kTiles);
  planner_.Recording()->Acquire(1, Tier::kPinned, Access::kRead, 0, 0);
  planner_.Recording()->Release(1, Tier::kPinned, Access::kRead, 0);
  ASSERT_TRUE(planner_.EndStep(0).ok());
  (void)Next();  // requests it
  ASSERT_TRUE(service_.Wait().ok());
  Tile& resting = tiles_.emplace_back();
  resting.size_bytes = 4096;
  resting.rest = Tier::kPinned;
  planner_.AddTile(kTiles, 0);
  ++reserved_changes_;
  const auto next = Next();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, nullptr);
  ASSERT_TRUE(service_.Wait().ok());
  EXPECT_NE(Next().value_or(nullptr), nullptr);
}

// The step has ended, its plan is made, and then a tile loses its bytes, as by a Restore.
TEST_F(StepPlannerTest, APlanThatWasMadeIsVoidIfTheTilesChangeBeforeItIsTaken) {
  AddTiles(kTiles);
  ASSERT_TRUE(IsPlannedAnew());
  with_bytes_.Set(1, false);
  const auto next = Next();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, nullptr);
  ASSERT_TRUE(service_.Wait().ok());
  EXPECT_NE(Next().value_or(nullptr), nullptr);
}

// The service's answer to the planner is replaced by that of a request that ran out of memory.
TEST_F(StepPlannerTest, APlanThatThereWasNoMemoryForIsRequestedAgain) {
  AddTiles(kTiles);
  planner_.Recording()->Acquire(1, Tier::kPinned, Access::kRead, 0, 0);
  planner_.Recording()->Release(1, Tier::kPinned, Access::kRead, 0);
  ASSERT_TRUE(planner_.EndStep(0).ok());
  EXPECT_EQ(Next().value_or(nullptr), nullptr);
  ASSERT_TRUE(service_.Wait().ok());
  ASSERT_TRUE(service_.Take().has_value());
  ASSERT_TRUE(service_.Make([]() -> plan::Trace { throw std::bad_alloc(); }).ok());
  ASSERT_TRUE(service_.Wait().ok());
  EXPECT_TRUE(absl::IsUnavailable(Next().status()));
  EXPECT_EQ(Next().value_or(nullptr), nullptr);
  ASSERT_TRUE(service_.Wait().ok());
  EXPECT_NE(Next().value_or(nullptr), nullptr);
}

TEST(StepPlannerAlone, AStepIsPlannedLaterIfNoThreadCouldBeStarted) {
  TileTable tiles;
  plan::TileBits with_bytes;
  std::optional<PlanService> service;
  {
    const NoNewThreads none;
    service.emplace(kBudgets);
  }
  StepPlanner planner(kBudgets, &tiles, &*service);
  tiles.emplace_back().size_bytes = 4096;
  with_bytes.Set(0);
  planner.AddTile(0, 0);
  for (int step = 0; step < 3; ++step) {
    planner.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 0, 0);
    planner.Recording()->Release(0, Tier::kPinned, Access::kRead, 0);
    ASSERT_TRUE(planner.EndStep(0).ok());
    if (step == 2) service->Start();
    const auto next = planner.Next({.with_bytes = with_bytes});
    EXPECT_EQ(absl::IsResourceExhausted(next.status()), step < 2) << next.status();
    EXPECT_EQ(planner.plans_made(), 0u);
  }
  ASSERT_TRUE(service->Wait().ok());
  const auto next = planner.Next({.with_bytes = with_bytes});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_NE(*next, nullptr);
}

// A change of the reserved frames makes the plan out of date.
TEST_F(StepPlannerTest, AStepKeepsItsTimeBoundWhileItsPlanIsMadeAgain) {
  AddTiles(1);
  const auto lease = [&](double now) {
    planner_.Recording()->Acquire(0, Tier::kPinned, Access::kRead, now, now);
    planner_.Recording()->Release(0, Tier::kPinned, Access::kRead, now + 1);
  };
  lease(0);
  ASSERT_TRUE(EndStep(1).ok());
  const auto before = Next();
  ASSERT_TRUE(before.ok());
  ASSERT_NE(*before, nullptr);
  lease(1);
  ++reserved_changes_;
  ASSERT_TRUE(planner_.EndStep(2).ok());
  EXPECT_EQ(planner_.last_step().At({}).computing, 1);
  (void)Next();  // requests another plan
  EXPECT_EQ(planner_.last_step().At({}).computing, 1);
  ASSERT_TRUE(service_.Wait().ok());
  const auto after = Next();
  ASSERT_TRUE(after.ok());
  EXPECT_NE(*after, *before);
}

// The second step begins with the end of a lease of the step before, and ends while a lease is
// held.
TEST_F(StepPlannerTest, AStepThatCouldNotHappenIsLearnedAnew) {
  AddTiles(1);
  planner_.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 0, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(EndStep(1)));
  planner_.Recording()->Release(0, Tier::kPinned, Access::kRead, 1);
  planner_.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 1, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(EndStep(2)));
  planner_.Recording()->Release(0, Tier::kPinned, Access::kRead, 2);
  EXPECT_TRUE(absl::IsInvalidArgument(EndStep(3)));
  planner_.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 3, 3);
  planner_.Recording()->Release(0, Tier::kPinned, Access::kRead, 4);
  EXPECT_TRUE(EndStep(4).ok());
  EXPECT_NE(*Next(), nullptr);
}

TEST_F(StepPlannerTest, AStepThatIsTooLongHasNoTimeBound) {
  AddTiles(1);
  double now = 0;
  const auto lease = [&](plan::StepRecorder* recorder) {
    recorder->Acquire(0, Tier::kPinned, Access::kRead, now, now);
    recorder->Release(0, Tier::kPinned, Access::kRead, now + 1);
    now += 1;
  };
  lease(planner_.Recording());
  ASSERT_TRUE(EndStep(now).ok());
  EXPECT_EQ(planner_.last_step().At({}).computing, 1);
  while (plan::StepRecorder* const recorder = planner_.Recording()) lease(recorder);
  EXPECT_EQ(planner_.last_step().At({}).computing, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(EndStep(now)));
  lease(planner_.Recording());
  EXPECT_TRUE(EndStep(now).ok());
  EXPECT_EQ(planner_.last_step().At({}).computing, 1);
}

}  // namespace
}  // namespace spillway::engine
