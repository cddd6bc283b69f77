// SPDX-License-Identifier: Apache-2.0
//
// Steps that repeat, through the public engine. Random steps over tiles with known values are
// followed by plan under every policy, with steps that differ, commits, evictions and waiting
// callers in between. Every lease must find the last value written. A step that repeats must move
// what its plan predicted, and must not be taken for another.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "spillway/engine.h"
#include "src/engine/pager/arena_map.h"
#include "tests/engine/policies.h"
#include "tests/engine/random_steps.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::engine {
namespace {

// Opens an engine that holds less than half of the tiles, besides those that rest in memory.
std::unique_ptr<Engine> OpenSmall(const std::string& folder, MaybePolicy policy,
                                  const Placement& placement = {}) {
  EngineOptions options;
  options.store = {folder};
  options.mode = OpenMode::kScratch;
  options.device_bytes = 96 * kKiB;
  options.pinned_bytes = 192 * kKiB;
  options.page_bytes = 4 * kKiB;
  options.placement = placement;
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    const auto rest = placement[static_cast<size_t>(RoleOf(tensor))];
    const auto bytes = static_cast<uint64_t>(RowsOf(tensor) * kTiles * kRowBytes);
    if (rest == Tier::kDevice) options.device_bytes += bytes;
    if (rest == Tier::kPinned) options.pinned_bytes += bytes;
  }
  auto engine = OpenWith(policy, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Opens an engine whose pinned memory has room for exactly all tiles. If `folder` is empty, the
// engine has no store.
std::unique_ptr<Engine> OpenRoomy(const std::string& folder, MaybePolicy policy) {
  EngineOptions options;
  if (!folder.empty()) options.store = {folder};
  options.mode = OpenMode::kScratch;
  options.device_bytes = 96 * kKiB;
  options.pinned_bytes = 0;
  for (int tensor = 0; tensor < kTensors; ++tensor)
    options.pinned_bytes += static_cast<uint64_t>(RowsOf(tensor) * kTiles * kRowBytes);
  options.page_bytes = 4 * kKiB;
  auto engine = OpenWith(policy, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

Placement RandomPlacement(uint64_t seed) {
  std::mt19937_64 random(seed);
  Placement placement;
  for (auto& tier : placement) {
    const auto chosen = static_cast<Tier>(random() % 4);
    if (chosen <= Tier::kNvme) tier = chosen;
  }
  return placement;
}

class PlannedPaging : public ::testing::TestWithParam<MaybePolicy> {
 protected:
  test::TempFolder folder_;
};

// Runs a random step eight times. Returns what was planned to move, and what moved.
PlanStats StatsOfRepeatedStep(Engine* engine, uint64_t seed) {
  RandomSteps steps(engine, seed);
  const Step step = steps.MakeStep(120);
  for (int i = 0; i < 8 && !testing::Test::HasFatalFailure(); ++i) {
    steps.Run(step);
    EXPECT_TRUE(engine->EndStep().ok());
    EXPECT_TRUE(engine->WaitForPlan().ok());
  }
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.not_planned, "");
  EXPECT_LE(plan.moved_bytes(), plan.planned_bytes);
  EXPECT_LE(plan.bytes_bound, plan.planned_bytes);
  return plan;
}

TEST_P(PlannedPaging, ARepeatedStepMovesWhatItsPlanForetold) {
  const uint64_t seed = test::Seed();
  const auto engine = OpenSmall(folder_ / "store", GetParam());
  const PlanStats plan = StatsOfRepeatedStep(engine.get(), seed);
  if (HasFatalFailure()) return;
  EXPECT_EQ(plan.plans > 0, GetParam().has_value());
  EXPECT_EQ(plan.time_bound_seconds > 0, GetParam().has_value());
  EXPECT_GE(plan.time_bound_seconds, std::max(plan.compute_seconds, plan.transfer_seconds));
  // A cache policy also writes tiles that are discarded before they are read. Such a write may come
  // too late to happen.
  if (GetParam() != plan::Policy::kPlanned) return;
  // The first step has no plan. The second step's plan ignores which tiles have bytes after the
  // step.
  EXPECT_GE(plan.steps, 5u);
  EXPECT_EQ(plan.deviations, 0u);
  EXPECT_EQ(plan.moved_bytes(), plan.planned_bytes);
}

TEST_P(PlannedPaging, TheFiguresOfAPlanAreThoseOfTheStepThatFollowedIt) {
  const uint64_t seed = test::Seed();
  const auto engine = OpenSmall(folder_ / "store", GetParam());
  RandomSteps steps(engine.get(), seed);
  const std::array<Step, 2> alternating = {steps.MakeStep(120), steps.MakeStep(40)};
  std::array<PlanStats, 2> followed;
  for (int i = 0; i < 24 && !HasFatalFailure(); ++i) {
    steps.Run(alternating[i % 2]);
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
    const PlanStats plan = engine->Stats().plan;
    if (i < 2) {
      EXPECT_EQ(plan.planned_bytes + plan.bytes_bound + plan.moved_bytes(), 0u) << i;
    }
    if (plan.planned_bytes == 0) continue;
    PlanStats& before = followed[i % 2];
    if (before.planned_bytes > 0) {
      EXPECT_EQ(plan.planned_bytes, before.planned_bytes) << i;
      EXPECT_EQ(plan.bytes_bound, before.bytes_bound) << i;
    }
    EXPECT_LE(plan.bytes_bound, plan.planned_bytes);
    before = plan;
  }
  if (GetParam() != plan::Policy::kPlanned) return;
  for (const PlanStats& plan : followed) EXPECT_GT(plan.planned_bytes, 0u);
  EXPECT_NE(followed[0].planned_bytes, followed[1].planned_bytes);
  steps.Run(steps.MakeStep(20));
  ASSERT_TRUE(engine->EndStep().ok());
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.planned_bytes + plan.bytes_bound + plan.moved_bytes(), 0u);
}

TEST_P(PlannedPaging, APlacedStepThatRepeatsMovesNoMoreThanItsPlanForetold) {
  const uint64_t seed = test::Seed();
  const auto engine = OpenSmall(folder_ / "store", GetParam(), RandomPlacement(seed));
  const PlanStats plan = StatsOfRepeatedStep(engine.get(), seed);
  if (HasFatalFailure()) return;
  if (plan.plans == 0) return;  // on demand, or all tiles fit
  EXPECT_GT(plan.steps, 0u);    // the writes at the end of the last step may not have begun
  EXPECT_EQ(plan.deviations, 0u);
}

TEST_P(PlannedPaging, WhereAllTilesFitAPlanMovesThemToTheDeviceAndBackAlone) {
  const uint64_t seed = test::Seed();
  for (const std::string& folder : {folder_ / "store", std::string()}) {
    SCOPED_TRACE(folder);
    const auto engine = OpenRoomy(folder, GetParam());
    const PlanStats plan = StatsOfRepeatedStep(engine.get(), seed);
    if (HasFatalFailure()) return;
    const EngineStats stats = engine->Stats();
    EXPECT_EQ(stats.nvme.read_bytes + stats.nvme.written_bytes, 0u);
    EXPECT_EQ(plan.nvme_bytes_bound, 0u);
    EXPECT_EQ(plan.plans > 0, GetParam().has_value());
    if (GetParam() != plan::Policy::kPlanned) continue;
    EXPECT_GE(plan.steps, 5u);
    EXPECT_EQ(plan.deviations, 0u);
    EXPECT_GT(plan.planned_bytes, 0u);
    EXPECT_EQ(plan.moved_bytes(), plan.planned_bytes);
  }
}

// Runs forty steps (fewer under a sanitizer), with other steps, evictions and, if there is a store,
// commits in between.
void Disturb(Engine* engine, uint64_t seed, bool has_store = true) {
  RandomSteps steps(engine, seed);
  const Step step = steps.MakeStep(80);
  const Step evaluation = steps.MakeStep(30);
  for (unsigned i = 0; i < 40 / SampleShare(); ++i) {
    switch (steps.Below(6)) {
      case 0: steps.Run(evaluation); break;
      case 1: steps.Run(steps.Vary(step)); break;
      case 2:
        (void)engine->Evict(steps.Ref(steps.Below(kTensors), 0));
        steps.Run(step);
        break;
      default: steps.Run(step);
    }
    if (testing::Test::HasFatalFailure()) return;
    if (steps.Below(8) != 0) {
      ASSERT_TRUE(engine->EndStep().ok());
    }
    if (steps.Below(2) != 0) {
      ASSERT_TRUE(engine->WaitForPlan().ok());
    }
    if (has_store && steps.Below(4) == 0) {
      ASSERT_TRUE(engine->Commit("state").ok());
    }
  }
}

TEST_P(PlannedPaging, WhateverElseHappensEveryLeaseFindsTheNewestBytes) {
  Disturb(OpenSmall(folder_ / "store", GetParam()).get(), test::Seed());
}

TEST_P(PlannedPaging, WhateverElseHappensPlacedTilesHaveTheNewestBytesToo) {
  const uint64_t seed = test::Seed();
  Disturb(OpenSmall(folder_ / "store", GetParam(), RandomPlacement(seed)).get(), seed);
}

TEST_P(PlannedPaging, WhateverElseHappensTilesThatAllFitHaveTheNewestBytesToo) {
  const uint64_t seed = test::Seed();
  Disturb(OpenRoomy(folder_ / "store", GetParam()).get(), seed);
  Disturb(OpenRoomy("", GetParam()).get(), seed, /*has_store=*/false);
}

TEST(PlannedPagingAlone, ATensorThatIsRegisteredLeavesPlansThatDoNotUseItAsTheyAre) {
  const test::TempFolder folder;
  const auto engine = OpenSmall(folder / "store", plan::Policy::kPlanned);
  RandomSteps steps(engine.get(), test::Seed());
  const Step step = steps.MakeStep(120);
  const auto repeat = [&](int times) {
    for (int i = 0; i < times && !testing::Test::HasFatalFailure(); ++i) {
      steps.Run(step);
      ASSERT_TRUE(engine->EndStep().ok());
      ASSERT_TRUE(engine->WaitForPlan().ok());
    }
  };
  repeat(8);
  const PlanStats before = engine->Stats().plan;
  for (const char* name : {"new", "newer"}) {
    const auto id = engine->Register({.name = name, .shape = {4, 512}, .tile_rows = 1});
    ASSERT_TRUE(id.ok()) << id.status();
    repeat(2);
  }
  const PlanStats after = engine->Stats().plan;
  EXPECT_EQ(after.plans, before.plans);
  EXPECT_GE(after.steps, before.steps + 3) << "the last may not have ended its transfers";
  EXPECT_EQ(after.deviations, before.deviations);
}

// Steps read 16 tiles. Then a tensor comes whose tiles rest at the bottom of pinned memory. If all
// tiles fit there, the others have their places above them. If not, the plan has frames there.
TEST(PlannedPagingAlone, ATensorThatRestsInMemoryVoidsThePlans) {
  for (const bool all_fit : {true, false}) {
    SCOPED_TRACE(all_fit);
    const test::TempFolder folder;
    EngineOptions options;
    options.store = {folder / "store"};
    options.device_bytes = 64 * kKiB;
    options.pinned_bytes = (all_fit ? 20 : 10) * 4 * kKiB;
    options.page_bytes = 4 * kKiB;
    options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kPinned;
    auto engine = OpenWith(plan::Policy::kPlanned, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto add = [&](const char* name, Role role, int64_t tiles) {
      auto id =
          (*engine)->Register({.name = name, .shape = {tiles, 1024}, .role = role, .tile_rows = 1});
      EXPECT_TRUE(id.ok()) << id.status();
      return id.value_or(TensorId{});
    };
    const auto step = [&](TensorId tensor) {
      for (uint64_t tile = 0; tile < (*engine)->Spec(tensor).num_tiles(); ++tile)
        EXPECT_TRUE((*engine)->AcquireHost({tensor, tile}, Access::kReadWrite).ok());
      ASSERT_TRUE((*engine)->EndStep().ok());
      ASSERT_TRUE((*engine)->WaitForPlan().ok());
    };
    const TensorId weights = add("weights", Role::kParameter, 16);
    for (int i = 0; i < 4; ++i) step(weights);
    const uint64_t before = (*engine)->Stats().plan.plans;
    const TensorId moments = add("moments", Role::kMoment, 4);
    step(weights);
    step(moments);
    for (int i = 0; i < 4; ++i) step(weights);
    const PlanStats plan = (*engine)->Stats().plan;
    EXPECT_EQ(plan.plans - before, 1u);
    EXPECT_GT(plan.moved_bytes() + all_fit, 0u);
    EXPECT_EQ(plan.moved_bytes(), plan.planned_bytes);
  }
}

// Four tiles rest in pinned memory and are not used at first. There is room for one more. Steps use
// eight others, one after the other, by a plan. One of these is then held while the four are leased
// for the first time, so it must not lie where they rest.
TEST_P(PlannedPaging, ATileThatIsHeldDoesNotTakeTheRoomOfThoseThatRestThere) {
  EngineOptions options;
  options.store = {folder_ / "store"};
  options.device_bytes = 64 * kKiB;
  options.pinned_bytes = 5 * 4 * kKiB;
  options.page_bytes = 4 * kKiB;
  options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kPinned;
  auto engine = OpenWith(GetParam(), options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto resting = (*engine)->Register(
      {.name = "moments", .shape = {4, 1024}, .role = Role::kMoment, .tile_rows = 1});
  ASSERT_TRUE(resting.ok()) << resting.status();
  const auto others = (*engine)->Register(
      {.name = "gradients", .shape = {8, 1024}, .role = Role::kGradient, .tile_rows = 1});
  ASSERT_TRUE(others.ok()) << others.status();
  for (int step = 0; step < 4; ++step) {
    for (uint64_t tile = 0; tile < 8; ++tile)
      ASSERT_TRUE((*engine)->AcquireHost({*others, tile}, Access::kReadWrite).ok());
    ASSERT_TRUE((*engine)->EndStep().ok());
    ASSERT_TRUE((*engine)->WaitForPlan().ok());
  }
  for (uint64_t tile = 0; tile < 8; ++tile) {
    const auto held = (*engine)->AcquireHost({*others, tile}, Access::kReadWrite);
    ASSERT_TRUE(held.ok()) << held.status();
    for (uint64_t rests = 0; rests < 4; ++rests) {
      const auto lease = (*engine)->AcquireHost({*resting, rests}, Access::kReadWrite);
      EXPECT_TRUE(lease.ok()) << lease.status();
    }
  }
}

// A caller that never ends a step must not use memory for it without bound.
TEST(PlannedPagingAlone, AStepTooLongToWriteDownIsNotPlannedAndSaysSo) {
  const test::TempFolder folder;
  const auto engine = OpenSmall(folder / "store", plan::Policy::kPlanned);
  RandomSteps steps(engine.get(), test::Seed());
  const Step step = steps.MakeStep(200);
  for (int i = 0; i < 60; ++i) steps.Run(step);
  ASSERT_TRUE(engine->EndStep().ok());
  ASSERT_TRUE(engine->WaitForPlan().ok());
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.plans, 0u);
  EXPECT_NE(plan.not_planned.find("where EndStep is called more often"), std::string::npos)
      << plan.not_planned;
}

TEST(PlannedPagingAlone, AnEndOfStepWithNothingBeforeItChangesNothing) {
  const test::TempFolder folder;
  const auto engine = OpenSmall(folder / "store", plan::Policy::kPlanned);
  RandomSteps steps(engine.get(), test::Seed());
  const Step step = steps.MakeStep(120);
  for (int i = 0; i < 6 && !testing::Test::HasFatalFailure(); ++i) {
    steps.Run(step);
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
    const PlanStats before = engine->Stats().plan;
    ASSERT_TRUE(engine->EndStep().ok());
    EXPECT_EQ(engine->Stats().plan.planned_bytes, before.planned_bytes);
  }
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.deviations, 0u);
  EXPECT_GE(plan.steps, 3u);
}

TEST(PlannedPagingAlone, StatsSayWhyAnEngineWithoutAStorePlansNothing) {
  EngineOptions options;
  options.device_bytes = 64 * kKiB;
  options.pinned_bytes = 16 * kFrameAlignment;
  const auto engine = *Engine::Open(options);
  const TensorId kept = *engine->Register({.name = "kept", .shape = {8, 1024}, .tile_rows = 1});
  const auto step = [&] {
    for (uint64_t tile = 0; tile < 8; ++tile)
      ASSERT_TRUE(engine->Acquire({kept, tile}, Access::kReadWrite).ok());
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
  };
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(engine->Stats().plan.not_planned, "");
  EXPECT_GT(engine->Stats().plan.steps, 0u);
  ASSERT_TRUE(engine
                  ->Register({.name = "more",
                              .shape = {20, 1024},
                              .role = Role::kActivation,
                              .tile_rows = 1,
                              .transient = true})
                  .ok());
  step();
  const PlanStats plan = engine->Stats().plan;
  EXPECT_NE(plan.not_planned.find("they take 112 KiB, and pinned_bytes is 64.0 KiB"),
            std::string::npos)
      << plan.not_planned;
  EXPECT_EQ(plan.deviations, 0u);
}

// The declared uses fill the device when the plan is taken up, and the step begins with a tile that
// takes all of it.
TEST(PlannedPagingAlone, PrefetchesThatStillWaitDoNotTakeTheRoomOfThePlan) {
  const test::TempFolder folder;
  EngineOptions options;
  options.store = {folder / "store"};
  options.mode = OpenMode::kScratch;
  options.page_bytes = 4 * kKiB;
  options.device_bytes = 2 * kFrameAlignment;
  options.pinned_bytes = 6 * kFrameAlignment;
  const auto engine = *Engine::Open(options);
  const TensorId activation =
      *engine->Register({.name = "activation", .shape = {2048}, .transient = true});
  const TensorId weights =
      *engine->Register({.name = "weights", .shape = {10, 1024}, .tile_rows = 1});
  std::vector<Use> next;
  for (uint64_t tile = 0; tile < 10; ++tile) {
    ASSERT_TRUE(engine->AcquireHost({weights, tile}, Access::kReadWrite).ok());
    next.push_back({{weights, tile}, Tier::kDevice, Access::kRead});
  }
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(engine->Acquire({activation, 0}, Access::kReadWrite).ok());
    ASSERT_TRUE(engine->Discard({activation, 0}).ok());
    for (const Use& use : next) ASSERT_TRUE(engine->Acquire(use.tile, use.access).ok());
    ASSERT_TRUE(engine->Prefetch(next).ok());
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
  }
}

// Work on a stream outlasts the step, as on a GPU.
TEST(PlannedPagingAlone, AStepWhoseLeasesStillWaitForAStreamIsPlannedToo) {
  const test::TempFolder folder;
  const auto engine = OpenSmall(folder / "store", plan::Policy::kPlanned);
  const auto id = engine->Register({.name = "t", .shape = {16, 8192}, .tile_rows = 1});
  ASSERT_TRUE(id.ok()) << id.status();
  const auto stream = engine->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (int step = 0; step < 6; ++step) {
    for (uint64_t tile = 0; tile < 16; ++tile) {
      const auto lease = engine->Acquire({*id, tile}, Access::kReadWrite, stream->get());
      ASSERT_TRUE(lease.ok()) << lease.status();
      ASSERT_TRUE((*stream)
                      ->Launch([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); })
                      .ok());
    }
    ASSERT_TRUE(engine->EndStep().ok());
    ASSERT_TRUE(engine->WaitForPlan().ok());
  }
  ASSERT_TRUE((*stream)->Synchronize().ok());
  const PlanStats plan = engine->Stats().plan;
  EXPECT_EQ(plan.not_planned, "");
  EXPECT_GT(plan.steps, 0u);
  EXPECT_EQ(plan.deviations, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, PlannedPaging,
                         ::testing::Values(plan::Policy::kPlanned, plan::Policy::kLru,
                                           plan::Policy::kFifo, plan::Policy::kPrefix,
                                           plan::Policy::kNone, kOnDemand),
                         [](const auto& policy) { return NameOf(policy.param); });

}  // namespace
}  // namespace spillway::engine
