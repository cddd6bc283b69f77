// SPDX-License-Identifier: Apache-2.0
//
// The room that a plan leaves to leases that do not wait for it. A plan has one order of leases;
// threads that take them in another hold other tiles together.

#ifndef SPILLWAY_PLAN_RESERVE_H_
#define SPILLWAY_PLAN_RESERVE_H_

#include <atomic>
#include <cstdint>

#include "src/plan/trace.h"

namespace spillway::plan {

struct Reserve {
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;
  friend bool operator==(const Reserve&, const Reserve&) = default;
};

// Of each tier: the sum of what each thread's leases hold at most, less what all leases of the
// trace hold at most, and one frame of the largest tile for each thread. Nothing for one thread,
// whose leases come in the plan's order. Any once `stop` is true. REQUIRES: a trace that Validate
// finds right.
Reserve ReserveFor(const Trace& trace, uint64_t frame_alignment,
                   const std::atomic<bool>* stop = nullptr);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_RESERVE_H_
