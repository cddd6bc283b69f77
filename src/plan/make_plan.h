// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_MAKE_PLAN_H_
#define SPILLWAY_PLAN_MAKE_PLAN_H_

#include "absl/status/statusor.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// Makes a plan for the trace. Returns InvalidArgument if the trace cannot happen, or if a tile's
// reserved frame overlaps another's or does not fit into its tier; ResourceExhausted, which says
// how much is missing, if the leases that the trace holds together do not fit; Cancelled if it is
// stopped (PlanOptions::stop).
absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_MAKE_PLAN_H_
