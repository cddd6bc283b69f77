// SPDX-License-Identifier: Apache-2.0
//
// Executes a plan in virtual time, at the granularity of tiles, and checks that it is valid: frames
// do not overlap and stay within the budgets, every lease and every transfer finds the newest
// bytes, and no bytes that are still needed are lost. It is the tests' oracle. Its seconds are
// those of transfers in the plan's order, up to 30% longer than what src/simulation finds.

#ifndef SPILLWAY_TESTS_PLAN_SIMULATE_H_
#define SPILLWAY_TESTS_PLAN_SIMULATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "src/plan/plan.h"
#include "src/plan/transfer.h"

namespace spillway::plan {

struct SimulatedStep {
  double seconds = 0;
  LinkBytes bytes;
};

// Executes four periods of the plan, starting at its seam, and returns the last one. Its transfers
// count as its own even if they started during the period before. An Internal error names
// the first operation or event at which the plan is not valid, or says what is wrong at the seam.
absl::StatusOr<SimulatedStep> Simulate(const Trace& trace, const Plan& plan);

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_SIMULATE_H_
