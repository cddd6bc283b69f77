// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <gtest/gtest.h>

#include <limits>

namespace spillway::engine {
namespace {

constexpr plan::TileIndex kTiles = 8;
constexpr plan::PlanOptions kBudgets{.device_bytes = 4096, .pinned_bytes = 4 * 4096};

class StepPlannerTest : public testing::Test {
 protected:
  void AddTiles(plan::TileIndex num_tiles) {
    for (plan::TileIndex tile = 0; tile < num_tiles; ++tile) {
      tiles_.emplace_back().size_bytes = 4096;
      with_bytes_.Set(tile);
      planner_.AddTile(tile, 0);
    }
  }
  // Ends a step and waits for the plan of the next.
  absl::Status EndStep(double now) {
    absl::Status ended = planner_.EndStep(now, {.with_bytes = with_bytes_, .placed = placed_});
    if (!ended.ok()) return ended;
    (void)planner_.Next();  // requests it
    if (absl::Status made = service_.Wait(); !made.ok()) return made;
    return planner_.Next().status();
  }

  TileTable tiles_;
  plan::TileBits with_bytes_, placed_;
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
  EXPECT_NE(*planner_.Next(), nullptr);
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
