// SPDX-License-Identifier: Apache-2.0
//
// The room that a plan leaves for leases that do not wait for their turn in it. A plan has one
// order of leases. Threads that take their leases in another order hold other tiles at the same
// time.

#ifndef SPILLWAY_PLAN_RESERVE_H_
#define SPILLWAY_PLAN_RESERVE_H_

#include <cstdint>

#include "src/plan/trace.h"

namespace spillway::plan {

struct Reserve {
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;
  friend bool operator==(const Reserve&, const Reserve&) = default;
};

// Returns the reserve of each tier: the sum of the peaks that each thread's leases hold, less the
// peak that all leases of the trace hold, plus one frame of the largest tile for each thread. It is
// zero for one thread, whose leases come in the plan's order. REQUIRES: a trace for which Validate
// returns OK.
Reserve ReserveFor(const Trace& trace, uint64_t frame_alignment);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_RESERVE_H_
