// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_
#define SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_

#include "src/plan/bounds.h"

namespace spillway::plan {

// Returns the least seconds of a step (see SecondsBound).
inline double BoundSeconds(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes,
                           const Rates& rates) {
  return SecondsBound(trace, budgets, bytes).Seconds(SecondsBound::Computing(trace.events), rates);
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_
