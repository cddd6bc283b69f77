// SPDX-License-Identifier: Apache-2.0
//
// Turns what both tiers retain, and where, into the operations of a plan.

#ifndef SPILLWAY_PLAN_OP_WRITER_H_
#define SPILLWAY_PLAN_OP_WRITER_H_

#include <cstdint>
#include <vector>

#include "src/plan/plan.h"
#include "src/plan/retention.h"
#include "src/plan/uses.h"

namespace spillway::plan {

// A tier's uses, what it retains and where each use's frame lies.
struct TierPlan {
  Retention retention;
  Retained retained;
  std::vector<uint64_t> offset;
};

// Fills in `ops`, `waits` and `seam` of `plan`.
void WriteOps(const Trace& trace, const EventsByTile& events, const TierPlan& device,
              const TierPlan& pinned, Plan* plan);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_OP_WRITER_H_
