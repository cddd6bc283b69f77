// SPDX-License-Identifier: Apache-2.0
//
// Steps in virtual time: they move what their plans say, in no less than their bounds.

#include "src/simulation/virtual_engine.h"

#include <gtest/gtest.h>

#include <random>

#include "gmock/gmock.h"
#include "src/plan/bounds.h"
#include "src/plan/make_plan.h"
#include "tests/exhaustive.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/model_step.h"
#include "tests/seed.h"

namespace spillway::simulation {
namespace {

using ::testing::HasSubstr;

SimulationOptions Within(uint64_t device_bytes, uint64_t pinned_bytes) {
  SimulationOptions options;
  options.budgets.device_bytes = device_bytes;
  options.budgets.pinned_bytes = pinned_bytes;
  return options;
}

plan::StepShape RandomShape(std::mt19937_64& random) {
  plan::StepShape shape;
  shape.layers = 1 + static_cast<int>(random() % 12);
  shape.micro_batches = 1 + static_cast<int>(random() % 3);
  shape.by_layer = random() % 2 == 0;
  shape.tiles_per_layer = 1 + static_cast<int>(random() % 6);
  shape.weight_bytes = 4096 * (1 + random() % 16);
  shape.gradient_bytes = shape.weight_bytes;
  shape.master_bytes = 2 * shape.weight_bytes;
  shape.checkpoint_bytes = 4096 * (1 + random() % 8);
  shape.forward_seconds = 1e-4 * static_cast<double>(random() % 100);
  shape.update_seconds = 1e-4 * static_cast<double>(random() % 100);
  return shape;
}

Machine RandomMachine(std::mt19937_64& random) {
  const auto rate = [&] { return 1e7 * static_cast<double>(1 + random() % 100); };
  Machine machine;
  machine.drives.clear();
  for (uint64_t i = 0; i <= random() % 3; ++i) machine.drives.push_back({rate(), rate(), rate()});
  machine.is_calibrated = random() % 2 == 0;
  machine.copy_in = rate();
  machine.copy_out = rate();
  machine.checksum = rate();
  machine.latency_seconds = random() % 2 == 0 ? 0 : 1e-4;
  machine.jitter = random() % 2 == 0 ? 0 : 0.3;
  machine.seed = random();
  return machine;
}

// The bound that a machine's step cannot beat. Bytes that are not shared in proportion to the
// drives' rates in a direction make a transfer slower, never faster.
double BoundOf(const plan::Trace& trace, const SimulationOptions& options) {
  const plan::BytesBound bytes = plan::BoundBytes(trace, options.budgets);
  return plan::BoundSeconds(trace, options.budgets, bytes, options.machine.Rates());
}

constexpr plan::Transfer kLinks[] = {plan::Transfer::kRead, plan::Transfer::kWrite,
                                     plan::Transfer::kCopyIn, plan::Transfer::kCopyOut};

TEST(VirtualEngine, APlannedStepMovesItsPlansBytesInNoLessThanItsBound) {
  const uint64_t first = test::Seed();
  int planned = 0;
  const uint64_t rounds = IsExhaustive() ? 4000 : 80;
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const plan::Trace trace = plan::StepTrace(RandomShape(random));
    const uint64_t state = plan::StateBytes(trace);
    const uint64_t device_bytes = state / (1 + random() % 20) + (1 << 18);
    const uint64_t pinned_bytes = state / (1 + random() % 20) + (1 << 18);
    SimulationOptions options = Within(device_bytes, pinned_bytes);
    options.machine = RandomMachine(random);
    options.most_steps = 6;
    plan::LinkBytes moved;
    uint64_t observed = 0;
    const absl::StatusOr<RepeatedStep> simulated =
        SimulateStep(trace, options, [&](const StepResult& step) {
          for (const plan::Transfer link : kLinks) moved[link] += step.bytes[link];
          ++observed;
        });
    if (absl::IsResourceExhausted(simulated.status())) continue;  // a lease does not fit
    ASSERT_TRUE(simulated.ok()) << simulated.status();
    if (!simulated->not_planned.empty()) continue;
    ++planned;
    if (simulated->repeats) {
      // A tile that its user discards before its turn is not copied out, and not written.
      for (const plan::Transfer link : {plan::Transfer::kRead, plan::Transfer::kCopyIn})
        EXPECT_EQ(simulated->step.bytes[link], simulated->planned_bytes[link]);
      for (const plan::Transfer link : {plan::Transfer::kWrite, plan::Transfer::kCopyOut})
        EXPECT_LE(simulated->step.bytes[link], simulated->planned_bytes[link]);
    }
    // Otherwise a transfer may have ended in the next step, where it is counted then.
    const uint64_t in_flight = options.budgets.pinned_bytes;
    for (const plan::Transfer link : kLinks) {
      const uint64_t planned_bytes = observed * simulated->planned_bytes[link];
      EXPECT_LE(moved[link], planned_bytes + in_flight);
      EXPECT_GE(moved[link] + in_flight, planned_bytes);
    }
    EXPECT_GE(simulated->step.seconds * (1 + 1e-9), simulated->step.compute_seconds);
    EXPECT_GE(simulated->step.seconds * (1 + 1e-9), BoundOf(trace, options));
    EXPECT_NEAR(simulated->step.seconds,
                simulated->step.compute_seconds + simulated->step.stall_seconds,
                1e-9 * (1 + simulated->step.seconds));
  }
  EXPECT_GT(planned, static_cast<int>(rounds / 2));
}

TEST(VirtualEngine, ASeedGivesTheSameStep) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  SimulationOptions options = Within(16 << 20, 96 << 20);
  options.machine.jitter = 0.2;
  options.most_steps = 4;
  const auto one = SimulateStep(trace, options);
  const auto same = SimulateStep(trace, options);
  ASSERT_TRUE(one.ok() && same.ok()) << one.status() << same.status();
  EXPECT_EQ(one->step.seconds, same->step.seconds);
  options.machine.seed = 2;
  const auto other = SimulateStep(trace, options);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(one->step.seconds, other->step.seconds);
  EXPECT_EQ(one->step.bytes, other->step.bytes) << "what moves does not depend on when it arrives";
}

TEST(VirtualEngine, APlanMovesLessThanDemandAndHidesMore) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  SimulationOptions options = Within(16 << 20, 256 << 20);
  const auto planned = SimulateStep(trace, options);
  options.plans_steps = false;
  const auto on_demand = SimulateStep(trace, options);
  ASSERT_TRUE(planned.ok() && on_demand.ok()) << planned.status() << on_demand.status();
  EXPECT_LT(planned->step.bytes.nvme(), on_demand->step.bytes.nvme());
  EXPECT_LT(planned->step.stall_seconds, on_demand->step.stall_seconds);
  EXPECT_EQ(planned->step.leases, on_demand->step.leases);
}

TEST(VirtualEngine, WhatRestsInMemoryIsNotWritten) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  SimulationOptions options = Within(32 << 20, uint64_t{4} << 30);
  for (size_t role = 0; role < options.placement.size(); ++role)
    options.placement[role] = Tier::kPinned;
  const auto simulated = SimulateStep(trace, options);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->step.bytes.nvme(), 0u);
  EXPECT_GT(simulated->step.bytes.device(), 0u);
}

TEST(VirtualEngine, WithoutAStoreMemoryIsTheLowestTier) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  SimulationOptions options = Within(32 << 20, uint64_t{4} << 30);
  options.budgets.has_store = false;
  const auto simulated = SimulateStep(trace, options);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->step.bytes.nvme(), 0u);
}

TEST(VirtualEngine, ALeaseThatDoesNotFitIsResourceExhausted) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  const auto device = SimulateStep(trace, Within(8 << 10, 1 << 30));
  EXPECT_TRUE(absl::IsResourceExhausted(device.status())) << device.status();
  SimulationOptions options = Within(32 << 20, 32 << 20);
  for (size_t role = 0; role < options.placement.size(); ++role)
    options.placement[role] = Tier::kPinned;
  const auto resting = SimulateStep(trace, options);
  EXPECT_TRUE(absl::IsResourceExhausted(resting.status())) << resting.status();
}

TEST(VirtualEngine, AnObserverIsToldOfEachStepAfterTheFirst) {
  SimulationOptions options = Within(16 << 20, 96 << 20);
  options.most_steps = 5;
  options.ends_early = false;
  std::vector<StepResult> steps;
  const auto simulated = SimulateStep(plan::StepTrace(plan::ModelShape()), options,
                                      [&](const StepResult& step) { steps.push_back(step); });
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_TRUE(simulated->repeats);
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_DOUBLE_EQ(steps[i].begin_seconds, steps[i - 1].begin_seconds + steps[i - 1].seconds);
    EXPECT_LE(steps[i].state.read_bytes, steps[i].bytes[plan::Transfer::kRead]);
  }
  EXPECT_EQ(steps.back().bytes, simulated->planned_bytes);
}

TEST(VirtualEngine, AMachineThatCannotBeIsRefused) {
  SimulationOptions options = Within(16 << 20, 96 << 20);
  options.machine.drives.clear();
  const auto simulated = SimulateStep(plan::StepTrace(plan::ModelShape()), options);
  EXPECT_TRUE(absl::IsInvalidArgument(simulated.status()));
  EXPECT_THAT(simulated.status().message(), HasSubstr("drive"));
}

TEST(VirtualEngine, TheTimelineHasTheStepsBytesAndStalls) {
  const plan::Trace trace = plan::StepTrace(plan::ModelShape());
  SimulationOptions options = Within(16 << 20, 96 << 20);
  options.timeline_events = 1 << 20;
  const auto simulated = SimulateStep(trace, options);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->timeline.dropped, 0u);
  uint64_t read_bytes = 0;
  int64_t stall_ns = 0, last_ns = simulated->timeline.begin_ns;
  for (const TimelineEvent& event : simulated->timeline.events) {
    if (event.kind == TimelineEvent::Kind::kRead) read_bytes += event.size_bytes;
    if (event.kind == TimelineEvent::Kind::kStall) stall_ns += event.end_ns - event.begin_ns;
    EXPECT_GE(event.end_ns, last_ns) << "events are in the order of their ends";
    last_ns = event.end_ns;
  }
  // Reads that are under way at the step's ends count in one of the two steps.
  EXPECT_NEAR(static_cast<double>(read_bytes),
              static_cast<double>(simulated->step.bytes[plan::Transfer::kRead]), 64 << 20);
  EXPECT_NEAR(static_cast<double>(stall_ns) * 1e-9, simulated->step.stall_seconds, 1e-5 * 10'000);
}

}  // namespace
}  // namespace spillway::simulation
