// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_
#define SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_

#include <vector>

#include "src/plan/bounds.h"

namespace spillway::plan {

// Returns the seconds of computing in each part of a step.
inline std::vector<double> ComputingOf(const Trace& trace) {
  EventLog log;
  for (const TraceEvent& event : trace.events) log.push_back(event);
  return SecondsBound::Computing(log);
}

// Returns the least seconds of a step (see SecondsBound).
inline double BoundSeconds(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes,
                           const Rates& rates) {
  return SecondsBound(trace, budgets, bytes).Seconds(ComputingOf(trace), rates);
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_BOUND_SECONDS_H_
