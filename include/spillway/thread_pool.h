// SPDX-License-Identifier: Apache-2.0
//
// Worker threads that a trainer and the optimizer share. The one idea: work is cut into a fixed
// number of parts that depends on the thread count only, so that the same numbers come out whatever
// the timing.

#ifndef SPILLWAY_THREAD_POOL_H_
#define SPILLWAY_THREAD_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "spillway/export.h"

namespace spillway {

// `num_threads` counts the caller: a pool of one runs everything inline. Where the system gives
// fewer threads, fewer do the same work. Thread-compatible: one caller at a time, and no
// ParallelFor inside another. A body must not throw. Destruction joins the workers.
class SPILLWAY_EXPORT ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(i) once for each i in [0, n), handing indices out to threads as they come free, and
  // returns when all have run. Which thread runs which i is not defined; the caller runs some.
  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body);

  // Cuts [0, n) into portions of `grain`, the last one smaller, and calls body(begin, end) for
  // each; threads take them as they come free, so that one which falls behind takes fewer.
  void ParallelPortions(int64_t n, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body);

  // Cuts [0, n) into num_threads() contiguous ranges, boundaries at multiples of `grain` (so that
  // they follow from n, grain and the thread count alone), and calls body(begin, end) for each that
  // is not empty.
  void ParallelRanges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  class Workers;
  int num_threads_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace spillway

#endif  // SPILLWAY_THREAD_POOL_H_
