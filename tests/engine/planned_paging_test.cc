// SPDX-License-Identifier: Apache-2.0
//
// Steps that repeat, through the public engine: random steps over tiles with known values, followed
// by plan under every policy, with steps that differ, commits, evictions and waiting callers in
// between. Every lease must find what was written last; a step that repeats must move what its plan
// foretold, and must not be taken for another.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "spillway/engine.h"
#include "tests/engine/random_steps.h"
#include "tests/trainer/temp_folder.h"

namespace spillway::engine {
namespace {

// An engine that holds less than half of the tiles.
std::unique_ptr<Engine> OpenSmall(const std::string& folder, Policy policy) {
  EngineOptions options;
  options.store = {folder};
  options.mode = OpenMode::kScratch;
  options.device_bytes = 96 * kKiB;
  options.pinned_bytes = 192 * kKiB;
  options.page_bytes = 4 * kKiB;
  options.policy = policy;
  auto engine = Engine::Open(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

class PlannedPaging : public ::testing::TestWithParam<Policy> {
 protected:
  static uint64_t Seed() {
    const uint64_t seed = std::random_device{}();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    return seed;
  }
  test::TempFolder folder_;
};

TEST_P(PlannedPaging, ARepeatedStepMovesWhatItsPlanForetold) {
  const uint64_t seed = Seed();
  const auto engine = OpenSmall(folder_ / "store", GetParam());
  RandomSteps steps(engine.get(), seed);
  const Step step = steps.MakeStep(120);
  for (int i = 0; i < 8; ++i) {
    steps.Run(step);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(engine->EndStep().ok());
  }
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.not_planned, "");
  EXPECT_EQ(plan.plans > 0, GetParam() != Policy::kOnDemand);
  const uint64_t moved = plan.nvme.read_bytes + plan.nvme.written_bytes + plan.pinned.read_bytes +
                         plan.pinned.written_bytes;
  EXPECT_LE(moved, plan.planned_bytes);
  EXPECT_LE(plan.bytes_bound, plan.planned_bytes);
  EXPECT_EQ(plan.time_bound_seconds > 0, GetParam() != Policy::kOnDemand);
  EXPECT_GE(plan.time_bound_seconds, std::max(plan.compute_seconds, plan.transfer_seconds));
  // A cache also writes what is discarded before anyone reads it, and may come too late for that.
  if (GetParam() != Policy::kPlanned) return;
  // The first step has no plan; the second's does not know which tiles have bytes after it.
  EXPECT_GE(plan.steps, 5u);
  EXPECT_EQ(plan.deviations, 0u);
  EXPECT_EQ(moved, plan.planned_bytes);
}

TEST_P(PlannedPaging, WhateverElseHappensEveryLeaseFindsTheNewestBytes) {
  const uint64_t seed = Seed();
  const auto engine = OpenSmall(folder_ / "store", GetParam());
  RandomSteps steps(engine.get(), seed);
  const Step step = steps.MakeStep(80);
  const Step evaluation = steps.MakeStep(30);
  for (int i = 0; i < 40; ++i) {
    switch (steps.Below(6)) {
      case 0: steps.Run(evaluation); break;
      case 1: steps.Run(steps.Vary(step)); break;
      case 2:
        (void)engine->Evict(steps.Ref(steps.Below(kTensors), 0));
        steps.Run(step);
        break;
      default: steps.Run(step);
    }
    if (HasFatalFailure()) return;
    if (steps.Below(8) != 0) {
      ASSERT_TRUE(engine->EndStep().ok());
    }
    if (steps.Below(4) == 0) {
      ASSERT_TRUE(engine->Commit("state").ok());
    }
  }
}

// Whoever never ends a step pays no memory for it.
TEST(PlannedPagingAlone, AStepTooLongToWriteDownIsNotPlannedAndSaysSo) {
  const test::TempFolder folder;
  const auto engine = OpenSmall(folder / "store", Policy::kPlanned);
  RandomSteps steps(engine.get(), /*seed=*/1);
  const Step step = steps.MakeStep(200);
  for (int i = 0; i < 60; ++i) steps.Run(step);
  ASSERT_TRUE(engine->EndStep().ok());
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.plans, 0u);
  EXPECT_NE(plan.not_planned.find("call EndStep after each step"), std::string::npos)
      << plan.not_planned;
}

std::string PolicyName(const ::testing::TestParamInfo<Policy>& policy) {
  static constexpr const char* kNames[] = {"Planned", "Lru", "Fifo", "Prefix", "None", "OnDemand"};
  return kNames[static_cast<size_t>(policy.param)];
}

INSTANTIATE_TEST_SUITE_P(Policies, PlannedPaging,
                         ::testing::Values(Policy::kPlanned, Policy::kLru, Policy::kFifo,
                                           Policy::kPrefix, Policy::kNone, Policy::kOnDemand),
                         PolicyName);

}  // namespace
}  // namespace spillway::engine
