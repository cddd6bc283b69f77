// SPDX-License-Identifier: Apache-2.0
//
// Lower bounds on the bytes and the seconds of every schedule within the budgets. MODEL.md derives
// them and says what they relax.

#ifndef SPILLWAY_PLAN_BOUNDS_H_
#define SPILLWAY_PLAN_BOUNDS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "src/plan/plan.h"
#include "src/plan/rates.h"
#include "src/plan/trace.h"

namespace spillway::plan {

// Lower bounds on the bytes of a period.
struct BytesBound {
  uint64_t nvme_read = 0;     // as if writes were free
  uint64_t nvme_written = 0;  // as if reads were free
  uint64_t nvme = 0;          // reads and writes together
  uint64_t device = 0;        // between pinned memory and the device, both directions
  uint64_t total() const { return nvme + device; }
};

// Computes the bounds on bytes. It ignores PlanOptions::stop, as SecondsBound does. With few priced
// positions (prices.h) a bound takes less time, and may be weaker.
BytesBound BoundBytes(const Trace& trace, const PlanOptions& budgets,
                      uint32_t most_times = UINT32_MAX);

// Lower bound on the seconds of a period. The constructor computes the bytes that the period must
// move. Rates and computing times may be measured anew in every period, so callers pass them in.
class SecondsBound {
 public:
  // Bytes of a window, which is a run of consecutive parts.
  struct Window {
    uint64_t reads = 0;     // of tiles whose first use needs bytes
    uint64_t writes = 0;    // of tiles that are written and not discarded since
    uint64_t copy_ins = 0;  // of tiles whose first use on the device needs bytes
  };

  SecondsBound(const Trace& trace, const PlanOptions& budgets, const BytesBound& bytes);

  const BytesBound& bytes() const { return bytes_; }

  // Returns the seconds of computing in each part of the period. Events are cut into at most 64
  // parts; the cut depends on the number of events alone.
  static std::vector<double> Computing(const EventLog& events);

  // Returns the least seconds that the links need, if computing took no time.
  double Transfers(const Rates& rates) const;
  // Returns the least seconds of the period. REQUIRES: `computing` is that of a trace that differs
  // from the constructor's in its times alone.
  double Seconds(std::span<const double> computing, const Rates& rates) const;

 private:
  static double Seconds(const Window& window, const Rates& rates);

  BytesBound bytes_;
  uint32_t num_parts_ = 0;
  // By first part, then by last part: the bytes that must move within the window, because memory
  // cannot hold them at its ends.
  std::vector<Window> windows_;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_BOUNDS_H_
