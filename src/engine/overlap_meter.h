// SPDX-License-Identifier: Apache-2.0
//
// Measures how much of the transfer time is hidden behind compute: wall time with a transfer in
// flight, and the part of it during which no caller was blocked.

#ifndef SPILLWAY_ENGINE_OVERLAP_METER_H_
#define SPILLWAY_ENGINE_OVERLAP_METER_H_

#include <chrono>

namespace spillway::engine {

// Externally synchronised. Times are arguments, so that they can be virtual.
class OverlapMeter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Records that from `now` on transfers are in flight, or not, and that `blocked` callers are
  // blocked.
  void Set(TimePoint now, bool moving, int blocked) {
    const double seconds = std::chrono::duration<double>(now - since_).count();
    if (moving_) io_seconds_ += seconds;
    if (moving_ && blocked_ == 0) hidden_seconds_ += seconds;
    if (blocked_ > 0) stall_seconds_ += seconds * blocked_;
    since_ = now;
    moving_ = moving;
    blocked_ = blocked;
  }

  bool moving() const { return moving_; }
  int blocked() const { return blocked_; }
  double io_seconds() const { return io_seconds_; }
  double hidden_seconds() const { return hidden_seconds_; }
  double stall_seconds() const { return stall_seconds_; }

 private:
  TimePoint since_{};
  bool moving_ = false;
  int blocked_ = 0;
  double io_seconds_ = 0;
  double hidden_seconds_ = 0;
  double stall_seconds_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_OVERLAP_METER_H_
