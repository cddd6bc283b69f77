// SPDX-License-Identifier: Apache-2.0
//
// Worker threads that a trainer and the optimizer share. Work is cut into parts that depend at most
// on the thread count and never on timing, so that the results do not depend on timing.

#ifndef SPILLWAY_THREAD_POOL_H_
#define SPILLWAY_THREAD_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "spillway/export.h"

namespace spillway {

// `num_threads` includes the caller: a pool of one thread runs everything inline. If the system
// provides fewer threads, these do the same work. Thread-compatible: one caller at a time, and no
// ParallelFor inside another. A body must not throw. It runs in the default floating-point
// environment (rounding to nearest, denormals kept), whatever the caller's is. The destructor joins
// the workers.
class SPILLWAY_EXPORT ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(i) once for each i in [0, n), and returns when all calls have returned. A thread
  // takes the next index when it is free; which thread runs which index is not defined. The caller
  // runs some of them.
  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body);

  // Cuts [0, n) into portions of `grain`, of which the last may be smaller, and calls body(begin,
  // end) for each. A thread takes the next portion when it is free, so a thread that falls behind
  // takes fewer.
  void ParallelPortions(int64_t n, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body);

  // Cuts [0, n) into num_threads() contiguous ranges and calls body(begin, end) for each that is
  // not empty. The boundaries are multiples of `grain`, and depend only on n, grain and the thread
  // count.
  void ParallelRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  class Workers;
  int num_threads_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace spillway

#endif  // SPILLWAY_THREAD_POOL_H_
