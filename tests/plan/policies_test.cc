// SPDX-License-Identifier: Apache-2.0
//
// A realistic step at budgets from 5% to 100% of its state: what each policy moves, beside the
// bytes that no schedule can stay under. Prints the table.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/simulate.h"
#include "tests/plan/model_step.h"

namespace spillway::plan {
namespace {

TEST(Policies, PlannedIsNearTheBoundAndNeverWorseThanOthers) {
  const Trace trace = StepTrace(ModelShape(), AccumulationOrder::kMicroBatch);
  const uint64_t state = StateBytes(trace);
  std::printf("state %.0f MiB, %zu tiles, %zu events; MiB a step over NVMe / pinned-device\n",
              static_cast<double>(state) / kMiB, trace.tiles.size(), trace.events.size());
  std::printf("%5s %14s %6s %6s %8s %8s |", "%", "bound", "ratio", "all", "s", "bound s");
  for (int i = 0; i < kNumPolicies; ++i)
    std::printf(" %14s", std::string(Name(static_cast<Policy>(i))).c_str());
  std::printf("\n");
  for (const int percent : {5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100}) {
    PlanOptions options;
    options.device_bytes = state * 5 / 100;
    options.pinned_bytes = state * static_cast<uint64_t>(percent) / 100;
    std::array<LinkBytes, kNumPolicies> moved;
    SimulatedStep planned;
    for (int i = 0; i < kNumPolicies; ++i) {
      options.policy = static_cast<Policy>(i);
      const auto plan = MakePlan(trace, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto step = Simulate(trace, *plan, Rates());
      ASSERT_TRUE(step.ok()) << step.status();
      moved[static_cast<size_t>(i)] = step->bytes;
      if (i == 0) planned = *step;
    }
    const BytesBound bound = BoundBytes(trace, options, moved[0]);
    const double seconds = BoundSeconds(trace, options, bound, Rates());
    std::printf("%5d %7.0f/%6.0f %6.3f %6.3f %8.4f %8.4f |", percent,
                static_cast<double>(bound.nvme) / kMiB, static_cast<double>(bound.device) / kMiB,
                static_cast<double>(moved[0].nvme()) /
                    static_cast<double>(std::max<uint64_t>(1, bound.nvme)),
                static_cast<double>(moved[0].total()) / static_cast<double>(bound.total()),
                planned.seconds, seconds);
    for (const LinkBytes& each : moved)
      std::printf(" %7.0f/%6.0f", static_cast<double>(each.nvme()) / kMiB,
                  static_cast<double>(each.device()) / kMiB);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace spillway::plan
