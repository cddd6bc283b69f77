// SPDX-License-Identifier: Apache-2.0
//
// Turns what both tiers keep, and where, into the operations of a plan.

#ifndef SPILLWAY_PLAN_OP_WRITER_H_
#define SPILLWAY_PLAN_OP_WRITER_H_

#include <cstdint>
#include <vector>

#include "src/plan/keeping.h"
#include "src/plan/plan.h"
#include "src/plan/uses.h"

namespace spillway::plan {

// A tier's uses, what it keeps and where each use's frame lies.
struct TierPlan {
  Keeping keeping;
  Kept kept;
  std::vector<uint64_t> offset;
};

// Fills in `ops`, `waits` and `seam` of `plan`.
void WriteOps(const Trace& trace, const EventsByTile& events, const TierPlan& device,
              const TierPlan& pinned, Plan* plan);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_OP_WRITER_H_
