// SPDX-License-Identifier: Apache-2.0

#include "spillway/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "src/base/forks.h"
#include "src/base/mutex.h"

namespace spillway {
namespace {

// How long a thread looks before it sleeps. Waking a sleeper takes some 40 us; the rounds of a
// training step follow one another closer than that. Longer looking would take the core from the
// engine's threads.
constexpr std::chrono::microseconds kLook{100};

// Tells the processor that this thread only looks.
void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `ready` holds, or has not for a while.
template <typename Ready>
void LookFor(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return;
      Relax();
    }
  } while (std::chrono::steady_clock::now() < end);
}

}  // namespace

// The threads beside the caller. A round of work is published under the lock; indices are then
// handed out by one counter. The caller closes the round when it finds no index left and waits for
// the workers in it: one that wakes later finds it closed.
class ThreadPool::Workers {
 public:
  explicit Workers(int count)
      : look_(count < static_cast<int>(std::thread::hardware_concurrency())) {
    threads_.reserve(static_cast<size_t>(count));
    // Where no thread can be started, fewer do the same work: it is cut into the same parts.
    for (int i = 0; i < count; ++i) {
      try {
        threads_.emplace_back(&Workers::Run, this);
      } catch (const std::system_error&) {
        break;
      }
    }
  }

  ~Workers() {
    {
      base::MutexLock lock(&mutex_);
      stop_ = true;
      round_.fetch_add(1, std::memory_order_relaxed);
      start_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  bool is_forked() const { return process_.is_forked(); }

  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
    {
      base::MutexLock lock(&mutex_);
      body_ = &body;
      n_ = n;
      next_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_relaxed);
      start_.NotifyAll();
    }
    Work(body, n);
    {
      base::MutexLock lock(&mutex_);
      body_ = nullptr;
    }
    if (look_) LookFor([this] { return working_.load(std::memory_order_acquire) == 0; });
    base::MutexLock lock(&mutex_);
    while (working_.load(std::memory_order_acquire) > 0) done_.Wait(&mutex_);
  }

 private:
  const base::ForkGuard process_;

  void Work(const std::function<void(int64_t)>& body, int64_t n) {
    for (int64_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1)) body(i);
  }

  void Run() {
    uint64_t seen = 0;
    for (;;) {
      if (look_) LookFor([&] { return round_.load(std::memory_order_relaxed) != seen; });
      const std::function<void(int64_t)>* body = nullptr;
      int64_t n = 0;
      {
        base::MutexLock lock(&mutex_);
        while (round_.load(std::memory_order_relaxed) == seen) start_.Wait(&mutex_);
        seen = round_.load(std::memory_order_relaxed);
        if (stop_) return;
        if (body_ == nullptr) continue;
        body = body_;
        n = n_;
        working_.fetch_add(1, std::memory_order_relaxed);
      }
      Work(*body, n);
      if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        base::MutexLock lock(&mutex_);
        done_.NotifyAll();
      }
    }
  }

  const bool look_;  // only where every thread has a core
  base::Mutex mutex_;
  base::CondVar start_;
  base::CondVar done_;
  const std::function<void(int64_t)>* body_ ABSL_GUARDED_BY(mutex_) =
      nullptr;  // null: no round is open
  int64_t n_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> round_{0};  // written under the lock
  std::atomic<int> working_{0};     // workers in the round; they enter under the lock
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> threads_;
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(num_threads, 1)) {
  if (num_threads_ > 1) workers_ = std::make_unique<Workers>(num_threads_ - 1);
}

// In a forked process there are no threads to join.
ThreadPool::~ThreadPool() {
  if (workers_ == nullptr || !workers_->is_forked()) return;
  [[maybe_unused]] const Workers* const left = workers_.release();
}

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
