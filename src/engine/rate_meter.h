// SPDX-License-Identifier: Apache-2.0
//
// How fast each link is, as far as this run has shown: bytes over the seconds in which it was busy,
// of the step in which that was most. Whoever asks what the links could have done must not be told
// less than what they did, nor what they do for a moment after a pause. So once a link has been
// busy for long enough without one, that time alone counts; and what it moved in any second,
// pauses and all, it can move, less what it may have been owed before. Pure; not thread-safe.

#ifndef SPILLWAY_ENGINE_RATE_METER_H_
#define SPILLWAY_ENGINE_RATE_METER_H_

#include <array>

#include "src/base/busy_meter.h"
#include "src/plan/simulate.h"

namespace spillway::engine {

// All since the start. A link is busy while a request is with the I/O engine or a copy on its
// stream, so that what the mover does before and after is not taken for the link's.
struct LinkUse {
  std::array<base::LinkBusy, plan::kNumLinks> links;  // by Transfer
  base::LinkBusy nvme_both;                           // while reads and writes were in flight
  base::Busy checksums;                               // CPU seconds
};

class RateMeter {
 public:
  // A step that keeps a link busy for less says little of it; it is added to the next.
  static constexpr double kLeastSeconds = 0.25;
  // Of a run's sustained use: a throttle may begin or end a spell of it with bytes not yet due.
  static constexpr double kLeastSustainedSeconds = 1;

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
  class LinkRate {
   public:
    void Take(const base::LinkBusy& total);
    bool is_known() const { return all_.is_known(); }
    double bytes_per_second() const;

   private:
    Best all_;
    base::LinkBusy total_;
  };

  std::array<LinkRate, plan::kNumLinks> links_;
  LinkRate nvme_both_;
  Best checksums_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RATE_METER_H_
