// SPDX-License-Identifier: Apache-2.0
//
// What no schedule within the budgets can beat, in bytes and in seconds. MODEL.md derives both and
// says what they leave out.

#ifndef SPILLWAY_PLAN_BOUNDS_H_
#define SPILLWAY_PLAN_BOUNDS_H_

#include <cstdint>
#include <span>
#include <vector>

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

// Any bytes if it is stopped (PlanOptions::stop), as is SecondsBound.
BytesBound BoundBytes(const Trace& trace, const PlanOptions& budgets);

// Least seconds of a period, at rates and computing times that may be measured anew in every
// period: what it must move is worked out once.
class SecondsBound {
 public:
  SecondsBound(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes);

  // Seconds of computing by part of the period: events are cut into at most 64 parts, as many
  // events always alike.
  static std::vector<double> Computing(std::span<const TraceEvent> events);
  static std::vector<double> Computing(const EventLog& events);

  // Of the links, if computing took no time.
  double Transfers(const Rates& rates) const;
  // With `computing` of a trace that differs from the constructor's in nothing but its times.
  double Seconds(std::span<const double> computing, const Rates& rates) const;

 private:
  // Bytes that events of some parts move beyond what memory can hold at their ends.
  struct Window {
    uint64_t reads = 0;     // NVMe
    uint64_t writes = 0;    // NVMe
    uint64_t copy_ins = 0;  // to the device
  };
  static double Seconds(const Window& window, const Rates& rates);

  BytesBound bytes_;
  uint32_t num_parts_ = 0;
  std::vector<Window> windows_;  // by first part, then by last
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_BOUNDS_H_
