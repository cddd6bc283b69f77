// SPDX-License-Identifier: Apache-2.0
//
// Tests plans whose bytes are known beforehand, and the oracle itself (the simulation): it must
// reject a plan that was altered.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "src/plan/make_plan.h"
#include "src/plan/retention.h"
#include "src/plan/stop.h"
#include "src/plan/uses.h"
#include "tests/plan/checked_plan.h"
#include "tests/plan/model_step.h"
#include "tests/plan/same_step.h"
#include "tests/plan/simulate.h"

namespace spillway::plan {
namespace {

using testing::HasSubstr;

// Returns a step that leases one tile after the other.
Trace Scan(int tiles, Tier tier, Access access) {
  TraceRecorder recorder;
  for (int i = 0; i < tiles; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (TileIndex tile = 0; tile < static_cast<TileIndex>(tiles); ++tile) {
    recorder.Acquire(tile, tier, access, tile, tile);
    recorder.Release(tile, tier, access, tile);
  }
  return recorder.End();
}

TEST(Plan, ACyclicScanHitsWhatFitsWhereLruHitsNothing) {
  const Trace trace = Scan(10, Tier::kPinned, Access::kRead);
  PlanOptions options = Budgets(0, 400);
  EXPECT_EQ(Planned(trace, options).bytes.nvme(), 700u);  // three stay, seven are read
  options.choose_retained = FunctionOf(Policy::kLru);
  EXPECT_EQ(Planned(trace, options).bytes.nvme(), 1000u);
  options.choose_retained = FunctionOf(Policy::kNone);
  EXPECT_EQ(Planned(trace, options).bytes.nvme(), 1000u);
  options.choose_retained = FunctionOf(Policy::kPlanned);
  options.pinned_bytes = 1000;
  EXPECT_EQ(Planned(trace, options).bytes.nvme(), 0u);
}

TEST(Plan, ADirtyTileThatLeavesIsWrittenAndReadAgain) {
  const Plan plan = Planned(Scan(10, Tier::kPinned, Access::kReadWrite), Budgets(0, 400));
  EXPECT_EQ(plan.bytes[Transfer::kRead], 700u);
  EXPECT_EQ(plan.bytes[Transfer::kWrite], 700u);
}

TEST(Plan, WhoStopsPlanningGetsNoPlan) {
  const Trace trace = Scan(10, Tier::kPinned, Access::kReadWrite);
  const std::atomic<bool> stop = true;
  PlanOptions options = Budgets(0, 400);
  options.stop = &stop;
  EXPECT_TRUE(absl::IsCancelled(MakePlan(trace, options).status()));
}

// What is chosen after a stop is not used, so only the first way is tried, if at all.
TEST(Plan, OnceItIsStoppedNoMoreOrdersAreTried) {
  const Trace trace = Scan(10, Tier::kPinned, Access::kReadWrite);
  const EventsByTile events(trace);
  const Retention device = DeviceUses(trace, events, 1);
  const Retention pinned = PinnedUses(trace, events, device, RetainAll(device), 1, true);
  const std::atomic<bool> stop = true;
  EXPECT_FALSE(WaysToRetain(pinned, 400).empty());
  EXPECT_TRUE(WaysToRetain(pinned, 400, &stop).empty());
}

// A plan that is stopped between its phases returns no error of theirs.
TEST(Plan, AStopWhileAWayIsChosenCancelsThePlan) {
  static std::atomic<bool> stop = false;
  PlanOptions options = Budgets(0, 400);
  options.stop = &stop;
  options.choose_retained = [](const Retention& retention, uint64_t, Stop) {
    stop = true;
    return std::vector<Retained>{Retained(retention.uses.size())};
  };
  const Trace trace = Scan(10, Tier::kPinned, Access::kReadWrite);
  EXPECT_TRUE(absl::IsCancelled(MakePlan(trace, options).status()));
}

TEST(Plan, WhatIsWrittenWholeIsNotReadBefore) {
  const Plan plan = Planned(Scan(10, Tier::kPinned, Access::kDiscard), Budgets(0, 400));
  EXPECT_EQ(plan.bytes[Transfer::kRead], 0u);
  EXPECT_EQ(plan.bytes[Transfer::kWrite], 700u);
}

TEST(Plan, PinnedMemoryIsACacheBelowTheDevice) {
  const Plan plan = Planned(Scan(10, Tier::kDevice, Access::kRead), Budgets(200, 1100));
  EXPECT_EQ(plan.bytes.nvme(), 0u);
  EXPECT_EQ(plan.bytes[Transfer::kCopyIn], 900u);  // one of ten stays on the device
  EXPECT_EQ(plan.bytes[Transfer::kCopyOut], 0u);
}

TEST(Plan, ADiscardedTileIsNeitherWrittenNorRead) {
  TraceRecorder recorder;
  for (int i = 0; i < 4; ++i)
    recorder.AddTile({.size_bytes = 100, .role = Role::kActivation, .transient = true});
  recorder.Begin(0);
  for (TileIndex tile = 0; tile < 4; ++tile) {
    recorder.Acquire(tile, Tier::kDevice, Access::kDiscard, 0, 0);
    recorder.Release(tile, Tier::kDevice, Access::kDiscard, 0);
    recorder.Discard(tile, 0);
  }
  EXPECT_EQ(Planned(recorder.End(), Budgets(100, 100)).bytes.total(), 0u);
}

TEST(Plan, WithoutAStoreEverythingRestsInPinnedMemory) {
  PlanOptions options = Budgets(200, 1000);
  options.has_store = false;
  const Trace trace = Scan(10, Tier::kDevice, Access::kReadWrite);
  EXPECT_EQ(Planned(trace, options).bytes.nvme(), 0u);
  options.pinned_bytes = 700;
  EXPECT_THAT(std::string(MakePlan(trace, options).status().message()), HasSubstr("pinned_bytes"));
}

TEST(Plan, SaysByHowMuchTheLeasesDoNotFit) {
  TraceRecorder recorder;
  for (int i = 0; i < 3; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (TileIndex tile = 0; tile < 3; ++tile)
    recorder.Acquire(tile, Tier::kPinned, Access::kRead, 0, 0);
  for (TileIndex tile = 0; tile < 3; ++tile)
    recorder.Release(tile, Tier::kPinned, Access::kRead, 0);
  const Trace trace = recorder.End();
  const absl::Status status = MakePlan(trace, Budgets(0, 260)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs at that time is 60 B"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("pinned_bytes is 260 B"));
  EXPECT_TRUE(MakePlan(trace, Budgets(0, 300)).ok());
}

// --- The oracle ---

// Returns how many of the plan's operations the simulation rejects when they are changed.
template <typename Change>
int Found(const Trace& trace, const Plan& plan, const Change& change) {
  int found = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    Plan changed = plan;
    if (change(changed, i)) found += Simulate(trace, changed).ok() ? 0 : 1;
  }
  return found;
}

TEST(Simulate, FindsOutWhatIsNotAPlan) {
  const Trace trace = StepTrace({.layers = 3,
                                 .tiles_per_layer = 2,
                                 .weight_bytes = 100,
                                 .gradient_bytes = 100,
                                 .master_bytes = 200,
                                 .checkpoint_bytes = 50,
                                 .forward_seconds = 1,
                                 .update_seconds = 1});
  const Plan plan = Planned(trace, Budgets(450, 1100));
  const auto num_ops = static_cast<int>(plan.ops.size());
  // Each drop becomes a write, and each other operation becomes a drop.
  EXPECT_EQ(Found(trace, plan,
                  [](Plan& p, size_t i) {
                    p.ops[i].kind =
                        p.ops[i].kind == Transfer::kDrop ? Transfer::kWrite : Transfer::kDrop;
                    return true;
                  }),
            num_ops);
  // The operation has another frame.
  EXPECT_EQ(Found(trace, plan,
                  [](Plan& p, size_t i) {
                    p.ops[i].offset += 25;
                    return true;
                  }),
            num_ops);
  // The operation waits for no lease: frames are taken over too early, and tiles are moved while
  // they are leased.
  EXPECT_GT(Found(trace, plan,
                  [](Plan& p, size_t i) {
                    p.ops[i].after = kNever;
                    return true;
                  }),
            0);
  const auto no_waits = [](Plan& p, size_t i) {
    if (i > 0) return false;
    p.waits.clear();
    for (Op& op : p.ops) op.first_wait = 0;
    return true;
  };
  EXPECT_EQ(Found(trace, plan, no_waits), 1);
}

TEST(ModelStep, OfOneMicroBatchIsTheSameInBothOrders) {
  StepShape shape = ModelShape();
  const Trace by_micro_batch = StepTrace(shape);
  shape.by_layer = true;
  EXPECT_TRUE(SameStep(StepTrace(shape), by_micro_batch));
}

}  // namespace
}  // namespace spillway::plan
