// SPDX-License-Identifier: Apache-2.0
//
// What no schedule within the budgets can beat, in bytes and in seconds. MODEL.md derives both and
// says what they leave out.

#ifndef SPILLWAY_PLAN_BOUNDS_H_
#define SPILLWAY_PLAN_BOUNDS_H_

#include <cstdint>

#include "src/plan/plan.h"
#include "src/plan/simulate.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// Least bytes of a period.
struct BytesBound {
  uint64_t nvme_read = 0;  // each as if the other were free
  uint64_t nvme_written = 0;
  uint64_t nvme = 0;    // both together
  uint64_t device = 0;  // between pinned memory and the device, both directions
  uint64_t total() const { return nvme + device; }
};

BytesBound BoundBytes(const Trace& trace, const PlanOptions& budgets);

// Least seconds of a period.
double BoundSeconds(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes,
                    const Rates& rates);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_BOUNDS_H_
