// SPDX-License-Identifier: Apache-2.0
//
// How long mutexes are held in this process, in the holder's CPU time and on the wall clock. The
// program that is linked with lock_holds.cc has its own pthread_mutex_lock and the like, so what is
// measured is every mutex of every library, as it is.

#ifndef SPILLWAY_BENCH_ENGINE_LOCK_HOLDS_H_
#define SPILLWAY_BENCH_ENGINE_LOCK_HOLDS_H_

#include <cstdint>

namespace spillway::bench {

struct LockHolds {
  uint64_t holds = 0;
  uint64_t over_200us = 0;  // of CPU time
  uint64_t over_5ms = 0;    // of CPU time
  int64_t longest_cpu_ns = 0;
  int64_t longest_wall_ns = 0;
};

// Those that ended since the last call, on all threads.
LockHolds TakeLockHolds();

}  // namespace spillway::bench

#endif  // SPILLWAY_BENCH_ENGINE_LOCK_HOLDS_H_
