// SPDX-License-Identifier: Apache-2.0
//
// The point in monotonic time at which a wait ends. Setting the wall clock does not move it.

#ifndef SPILLWAY_IO_DEADLINE_H_
#define SPILLWAY_IO_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace spillway::io {

class Deadline {
 public:
  static Deadline Never() { return Deadline(Clock::time_point::max()); }
  // A negative timeout counts as zero, one of a year or more as infinite.
  static Deadline After(absl::Duration timeout) {
    if (timeout >= absl::Hours(24 * 365)) return Never();
    return Deadline(Clock::now() +
                    absl::ToChronoNanoseconds(std::max(timeout, absl::ZeroDuration())));
  }

  bool is_never() const { return at_ == Clock::time_point::max(); }
  std::chrono::steady_clock::time_point at() const { return at_; }
  // The time that is left: zero once the deadline has passed, infinite if is_never().
  absl::Duration left() const {
    if (is_never()) return absl::InfiniteDuration();
    return std::max(absl::FromChrono(at_ - Clock::now()), absl::ZeroDuration());
  }
  bool passed() const { return left() == absl::ZeroDuration(); }

  friend bool operator<(Deadline a, Deadline b) { return a.at_ < b.at_; }

 private:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_DEADLINE_H_
