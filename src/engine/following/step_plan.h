// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_ENGINE_FOLLOWING_STEP_PLAN_H_
#define SPILLWAY_ENGINE_FOLLOWING_STEP_PLAN_H_

#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// A step that repeats, with its plan. The plan refers to the events of `trace`. The tiles of
// `trace` have the engine's tile indices.
struct StepPlan {
  plan::Trace trace;
  plan::Plan plan;

  // The operation of a number that counts on over periods, and the period.
  const plan::Op& OpAt(uint64_t op) const { return plan.ops[op % plan.ops.size()]; }
  uint64_t PeriodOf(uint64_t op) const { return op / plan.ops.size(); }
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_STEP_PLAN_H_
