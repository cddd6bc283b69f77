// SPDX-License-Identifier: Apache-2.0
//
// What has crossed a link, and for how long it was at it: the time with at least one transfer in
// flight. Time is given, not read, so that it can be virtual.

#ifndef SPILLWAY_BASE_BUSY_METER_H_
#define SPILLWAY_BASE_BUSY_METER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::base {

struct Busy {
  uint64_t bytes = 0;
  double seconds = 0;
};

// Externally synchronised. Seconds are on any clock that does not go back.
class BusyMeter {
 public:
  void Begin(double now) {
    if (in_flight_++ == 0) since_ = now;
  }
  void End(double now, uint64_t bytes) {
    busy_.bytes += bytes;
    busy_.seconds += std::max(0.0, now - since_);
    since_ = now;
    --in_flight_;
  }
  bool is_busy() const { return in_flight_ > 0; }
  // Up to the last end.
  const Busy& busy() const { return busy_; }

 private:
  int64_t in_flight_ = 0;
  double since_ = 0;
  Busy busy_;
};

// A link with two directions: each of them, and what ended, in which time, while both were busy.
class DuplexMeter {
 public:
  void Begin(size_t way, double now) {
    Pass(now);
    ways_[way].Begin(now);
  }
  void End(size_t way, double now, uint64_t bytes) {
    Pass(now);
    if (ways_[0].is_busy() && ways_[1].is_busy()) both_.bytes += bytes;
    ways_[way].End(now, bytes);
  }
  const Busy& busy(size_t way) const { return ways_[way].busy(); }
  const Busy& both() const { return both_; }

 private:
  void Pass(double now) {
    if (ways_[0].is_busy() && ways_[1].is_busy()) both_.seconds += std::max(0.0, now - last_);
    last_ = now;
  }

  std::array<BusyMeter, 2> ways_;
  Busy both_;
  double last_ = 0;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_BUSY_METER_H_
