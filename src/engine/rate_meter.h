// SPDX-License-Identifier: Apache-2.0
//
// How fast each link is, as far as this run has shown: bytes over the seconds in which it was busy,
// of the step in which that was most. Whoever asks what the links could have done must not be told
// less than what they did. Pure; not thread-safe.

#ifndef SPILLWAY_ENGINE_RATE_METER_H_
#define SPILLWAY_ENGINE_RATE_METER_H_

#include <array>

#include "src/base/busy_meter.h"
#include "src/plan/simulate.h"

namespace spillway::engine {

// All since the start.
struct LinkUse {
  std::array<base::Busy, plan::kNumLinks> links;  // by Link
  base::Busy nvme_both;                           // while reads and writes were in flight
  base::Busy checksums;                           // CPU seconds
};

class RateMeter {
 public:
  // A step that keeps a link busy for less says little of it; it is added to the next.
  static constexpr double kLeastSeconds = 0.25;

  void EndStep(const LinkUse& use);

  // Infinite for what was not used yet. NVMe moves in all what it has moved while it did in both
  // directions, or in one alone if that was more; where that has not been seen, what each alone
  // does.
  plan::Rates rates() const;

 private:
  class Best {
   public:
    void Take(const base::Busy& total);
    bool is_known() const { return best_ > 0; }  // of a step, not only of all so far
    double bytes_per_second() const;

   private:
    base::Busy taken_, total_;
    double best_ = 0;
  };

  std::array<Best, plan::kNumLinks> links_;
  Best nvme_both_, checksums_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RATE_METER_H_
