// SPDX-License-Identifier: Apache-2.0
//
// Plans a realistic step at budgets from 5% to 100% of its state. Compares the bytes that each
// policy moves with the bound that no schedule can undercut, and prints the table.

#include "tests/plan/policies.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <utility>

#include "src/plan/bounds.h"
#include "src/plan/make_plan.h"
#include "tests/exhaustive.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/model_step.h"
#include "tests/plan/simulate.h"

namespace spillway::plan {
namespace {

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

TEST(Policies, PlannedIsNearTheBoundAndNeverWorseThanOthers) {
  const Trace trace = StepTrace(ModelShape());
  const uint64_t state = StateBytes(trace);
  std::printf("state %.0f MiB, %zu tiles, %zu events; MiB a step over NVMe / pinned-device\n",
              static_cast<double>(state) / kMiB, trace.tiles.size(), trace.events.size());
  std::printf("%5s %14s %6s %6s %8s %8s |", "%", "bound", "NVMe", "all", "s", "bound s");
  for (int i = 0; i < kNumPolicies; ++i)
    std::printf(" %14s", std::string(Name(static_cast<Policy>(i))).c_str());
  std::printf("\n");
  for (const int percent : GridOf<int>({5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100})) {
    PlanOptions options;
    options.device_bytes = state * 5 / 100;
    options.pinned_bytes = state * static_cast<uint64_t>(percent) / 100;
    std::array<LinkBytes, kNumPolicies> moved;
    SimulatedStep planned;
    for (int i = 0; i < kNumPolicies; ++i) {
      options.choose_retained = FunctionOf(static_cast<Policy>(i));
      const auto plan = MakePlan(trace, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto step = Simulate(trace, *plan);
      ASSERT_TRUE(step.ok()) << step.status();
      EXPECT_EQ(step->bytes, plan->bytes);
      moved[static_cast<size_t>(i)] = step->bytes;
      if (i == 0) planned = *step;
    }
    const BytesBound bound = BoundBytes(trace, options);
    const double seconds = BoundSeconds(trace, options, bound, Rates());
    const auto ratio = [](uint64_t bytes, uint64_t least) {
      return static_cast<double>(bytes) / static_cast<double>(least);
    };
    std::printf("%5d %7.0f/%6.0f %6.3f %6.3f %8.4f %8.4f |", percent, MiB(bound.nvme),
                MiB(bound.device), ratio(moved[0].nvme(), bound.nvme),
                ratio(moved[0].total(), bound.total()), planned.seconds, seconds);
    for (const LinkBytes& each : moved)
      std::printf(" %7.0f/%6.0f", MiB(each.nvme()), MiB(each.device()));
    std::printf("\n");
    for (size_t i = 1; i < moved.size(); ++i) EXPECT_LT(moved[0].total(), moved[i].total());
    EXPECT_LT(ratio(moved[0].total(), bound.total()), 1.05);
    EXPECT_LT(ratio(moved[0].nvme(), bound.nvme), percent <= 70 ? 1.05 : 1.18);
    EXPECT_GE(planned.seconds, seconds);
  }
}

// Each tile is used many times in a step. Where weights and gradients nearly fit, the bytes that
// are missing are few.
TEST(Policies, PlanIsNearTheBoundOverEightMicroBatches) {
  StepShape shape = ModelShape();
  shape.micro_batches = 8;
  for (const auto& [by_layer, percent] :
       GridOf<std::pair<bool, int>>({{false, 10}, {false, 20}, {false, 95}, {true, 20}})) {
    shape.by_layer = by_layer;
    const Trace trace = StepTrace(shape);
    PlanOptions options;
    options.device_bytes = StateBytes(trace) * 5 / 100;
    options.pinned_bytes = StateBytes(trace) * static_cast<uint64_t>(percent) / 100;
    const auto plan = MakePlan(trace, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto moved = static_cast<double>(plan->bytes.total());
    const auto bound = static_cast<double>(BoundBytes(trace, options).total());
    EXPECT_GE(moved, bound);
    EXPECT_LT(moved, 1.05 * bound) << percent << "% of the state in pinned memory";
  }
}

}  // namespace
}  // namespace spillway::plan
