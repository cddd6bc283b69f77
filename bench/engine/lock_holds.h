// SPDX-License-Identifier: Apache-2.0
//
// Measures how long mutexes are held in this process, in the holder's CPU time and on the wall
// clock. lock_holds.cc replaces pthread_mutex_lock and its relatives in the program that it is
// linked into, so it measures the mutexes of every library without changes to them.

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
  double cpu_seconds = 0;  // of all holds
};

// Returns the holds that ended on any thread since the last call.
LockHolds TakeLockHolds();

}  // namespace spillway::bench

#endif  // SPILLWAY_BENCH_ENGINE_LOCK_HOLDS_H_
