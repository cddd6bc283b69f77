// SPDX-License-Identifier: Apache-2.0
//
// The clocks that measure how long work takes. All are monotonic, and only the difference of two
// values of one clock has a meaning.

#ifndef SPILLWAY_BASE_CLOCK_H_
#define SPILLWAY_BASE_CLOCK_H_

#include <time.h>

#include <chrono>
#include <cstdint>

namespace spillway::base {

inline int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

inline double Now() { return static_cast<double>(NowNs()) / 1e9; }

// CPU time of the calling thread.
inline int64_t ThreadCpuNs() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_CLOCK_H_
