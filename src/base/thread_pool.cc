// SPDX-License-Identifier: Apache-2.0

#include "spillway/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "src/base/mutex.h"

namespace spillway {

// The threads beside the caller. A round of work is published under the lock; indices are then
// handed out by one counter, and the caller waits until every worker has left the round.
class ThreadPool::Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back(&Workers::Run, this);
  }

  ~Workers() {
    {
      base::MutexLock lock(&mutex_);
      stop_ = true;
      ++round_;
      start_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
    {
      base::MutexLock lock(&mutex_);
      body_ = &body;
      n_ = n;
      next_.store(0, std::memory_order_relaxed);
      working_ = static_cast<int>(threads_.size());
      ++round_;
      start_.NotifyAll();
    }
    Work(body, n);
    base::MutexLock lock(&mutex_);
    while (working_ > 0) done_.Wait(&mutex_);
  }

 private:
  void Work(const std::function<void(int64_t)>& body, int64_t n) {
    for (int64_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1)) body(i);
  }

  void Run() {
    uint64_t seen = 0;
    for (;;) {
      const std::function<void(int64_t)>* body = nullptr;
      int64_t n = 0;
      {
        base::MutexLock lock(&mutex_);
        while (round_ == seen) start_.Wait(&mutex_);
        seen = round_;
        if (stop_) return;
        body = body_;
        n = n_;
      }
      Work(*body, n);
      base::MutexLock lock(&mutex_);
      if (--working_ == 0) done_.NotifyAll();
    }
  }

  base::Mutex mutex_;
  base::CondVar start_;
  base::CondVar done_;
  const std::function<void(int64_t)>* body_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t n_ ABSL_GUARDED_BY(mutex_) = 0;
  int working_ ABSL_GUARDED_BY(mutex_) = 0;  // workers that have not left the round
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(num_threads, 1)) {
  if (num_threads_ > 1) workers_ = std::make_unique<Workers>(num_threads_ - 1);
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
  if (workers_ == nullptr || n <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  workers_->ParallelFor(n, body);
}

void ThreadPool::ParallelRanges(int64_t n, int64_t grain,
                                const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t parts = std::min<int64_t>(num_threads_, grains);
  ParallelFor(parts, [&](int64_t part) {
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = std::min(n, grains * (part + 1) / parts * grain);
    if (begin < end) body(begin, end);
  });
}

}  // namespace spillway
