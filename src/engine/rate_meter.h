// SPDX-License-Identifier: Apache-2.0
//
// Measures how fast each link is, as far as this run has shown. A link's rate is its bytes over its
// busy seconds, in the step in which that was highest. The rates say what the links could have
// done, so they must not be lower than what the links did, and must not include the burst that a
// link allows after a pause. Once a link has been busy for long enough outside such bursts, only
// that sustained use counts: the rate of all of it, or of a short step's own part if that is
// higher, in that step. The most bytes that the link moved in any second, pauses included, are a
// lower bound of its rate. Once sustained use counts, this bound is reduced by the burst that an
// earlier pause may have allowed. Pure; not thread-safe.

#ifndef SPILLWAY_ENGINE_RATE_METER_H_
#define SPILLWAY_ENGINE_RATE_METER_H_

#include <array>

#include "src/base/busy_meter.h"
#include "src/plan/rates.h"

namespace spillway::engine {

// The use of the links since the start. A link is busy while a request is in the I/O engine or a
// copy is on its stream, so that the mover's work before and after does not count as the link's.
struct LinkUse {
  std::array<base::LinkBusy, plan::kNumLinks> links;  // indexed by Transfer
  base::LinkBusy nvme_both;                           // while reads and writes were both in flight
  base::Busy checksums;  // CPU seconds divided by the threads that may hash
};

class RateMeter {
 public:
  // A step that keeps a link busy for less says little about its rate; it is added to the next
  // step.
  static constexpr double kLeastSeconds = 0.25;
  // Least sustained use of a run after which it alone counts. A throttle may begin or end a spell
  // of use with bytes that are not due yet, which distorts the rate of shorter use.
  static constexpr double kLeastSustainedSeconds = 1;

  void EndStep(const LinkUse& use);

  // The rates; infinite for a link that was not used yet. The total rate of NVMe is the highest of
  // its rates in both directions at once, of reads and of writes, and at most the sum of the latter
  // two. It is that sum as long as the rate in both directions is not known.
  plan::Rates rates() const;

 private:
  class Best {
   public:
    void Take(const base::Busy& total);
    bool is_known() const { return best_ > 0; }  // from a step, not only from the total so far
    double bytes_per_second() const;
    // The rate in the last step, if that kept the link busy for less than kLeastSeconds; else zero.
    double in_short_step() const { return in_short_step_; }

   private:
    base::Busy taken_, total_;
    double best_ = 0, in_short_step_ = 0;
  };
  class LinkRate {
   public:
    void Take(const base::LinkBusy& total);
    bool is_known() const { return all_.is_known(); }
    double bytes_per_second() const;

   private:
    Best all_;
    base::LinkBusy total_;
    // The rate in the last step, less the beginnings of spells, if the step kept the link busy for
    // less than kLeastSustainedSeconds; else zero.
    double in_step_ = 0;
  };

  std::array<LinkRate, plan::kNumLinks> links_;
  LinkRate nvme_both_;
  Best checksums_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RATE_METER_H_
