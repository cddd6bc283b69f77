// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <gtest/gtest.h>

#include <limits>

namespace spillway::engine {
namespace {

constexpr plan::TileIndex kTiles = 8;
constexpr plan::PlanOptions kBudgets{.device_bytes = 4096, .pinned_bytes = 4 * 4096};

// Ends a step and waits for the plan of the next.
absl::Status EndStep(StepPlanner& planner, PlanService& service, double now) {
  absl::Status ended =
      planner.EndStep(now, {.tile = [](plan::TileIndex) { return plan::TileNow{.stored = true}; }});
  if (!ended.ok()) return ended;
  (void)planner.Next();  // asks for it
  service.Wait();
  return planner.Next().status();
}

TEST(StepPlanner, AStepThatCannotBePlannedHasNoTimeBound) {
  PlanService service(kBudgets);
  StepPlanner planner(kBudgets, &service);
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile)
    planner.AddTile({.size_bytes = 4096, .stored = true}, 0);
  double now = 0;
  const auto pass = [&](bool ends) {
    for (plan::TileIndex tile = 0; tile < kTiles; ++tile) {
      planner.Recording()->Acquire(tile, Tier::kPinned, Access::kRead, now, now);
      now += 1;
      if (ends) planner.Recording()->Release(tile, Tier::kPinned, Access::kRead, now);
    }
    return EndStep(planner, service, now);
  };
  const plan::Rates rates;
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  EXPECT_EQ(planner.BoundTime(rates).computing, 8);
  EXPECT_TRUE(absl::IsInvalidArgument(pass(/*ends=*/false)));
  EXPECT_EQ(planner.BoundTime(rates).seconds, 0);
  // And it is not taken for what precedes the next.
  ASSERT_TRUE(pass(/*ends=*/true).ok());
  EXPECT_EQ(planner.BoundTime(rates).computing, 8);
}

TEST(StepPlanner, AnEndWithoutAStepKeepsTheTimeBound) {
  PlanService service(kBudgets);
  StepPlanner planner(kBudgets, &service);
  planner.AddTile({.size_bytes = 4096, .stored = true}, 0);
  planner.Recording()->Acquire(0, Tier::kPinned, Access::kRead, 0, 0);
  planner.Recording()->Release(0, Tier::kPinned, Access::kRead, 1);
  ASSERT_TRUE(EndStep(planner, service, 1).ok());
  ASSERT_TRUE(EndStep(planner, service, 2).ok());
  EXPECT_EQ(planner.BoundTime({}).computing, 1);
}

TEST(StepPlanner, TheTimeBoundIsOfTheComputingOfTheStepThatEndedLast) {
  PlanService service(kBudgets);
  StepPlanner planner(kBudgets, &service);
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile)
    planner.AddTile({.size_bytes = 4096, .stored = true}, 0);
  double now = 0;
  plan::Rates rates;
  rates.link.fill(std::numeric_limits<double>::infinity());
  rates.nvme = rates.checksum = std::numeric_limits<double>::infinity();
  for (const double seconds : {1.0, 3.0, 2.0}) {
    for (plan::TileIndex tile = 0; tile < kTiles; ++tile) {
      const double asked = now;
      now += 10;  // waited
      planner.Recording()->Acquire(tile, Tier::kPinned, Access::kRead, asked, now);
      now += seconds;
      planner.Recording()->Release(tile, Tier::kPinned, Access::kRead, now);
    }
    ASSERT_TRUE(EndStep(planner, service, now).ok());
    EXPECT_EQ(planner.BoundTime(rates).computing, kTiles * seconds);
    EXPECT_EQ(planner.BoundTime(rates).seconds, kTiles * seconds);
  }
}

}  // namespace
}  // namespace spillway::engine
