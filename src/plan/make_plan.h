// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_PLAN_MAKE_PLAN_H_
#define SPILLWAY_PLAN_MAKE_PLAN_H_

#include "absl/status/statusor.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// InvalidArgument: the trace cannot happen. ResourceExhausted: the leases that the trace holds
// together do not fit, and by how much. Cancelled: see PlanOptions::stop.
absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_MAKE_PLAN_H_
