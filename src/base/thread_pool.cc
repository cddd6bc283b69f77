// SPDX-License-Identifier: Apache-2.0

#include "spillway/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "src/base/default_floats.h"
#include "src/base/forks.h"
#include "src/base/mutex.h"

namespace spillway {
namespace {

// How long a thread spins before it sleeps. Waking a thread takes about 40 us, and the rounds of a
// training step are closer together than that. A longer spin would take the core from the engine's
// threads.
constexpr std::chrono::microseconds kLook{100};

// Signals to the processor that this thread is spinning.
void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `ready` holds, but no longer than kLook.
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

// The threads of the pool besides the caller. One number holds the state of a round of work: the
// round's number, whether it is open, and how many workers are in it. The caller opens the round,
// and a worker enters an open round by increasing the number of workers. A counter hands out the
// indices. When no index is left, the caller closes the round and waits for the workers in it; a
// worker that comes later finds it closed. Only threads that sleep, and those that wake them, use
// the lock.
class ThreadPool::Workers {
 public:
  explicit Workers(int count)
      : look_(count < static_cast<int>(std::thread::hardware_concurrency())) {
    threads_.reserve(static_cast<size_t>(count));
    // If a thread cannot be started, fewer threads do the same work, cut into the same parts.
    for (int i = 0; i < count; ++i) {
      try {
        threads_.emplace_back(&Workers::Run, this);
      } catch (const std::system_error&) {
        break;
      }
    }
  }

  ~Workers() {
    stop_.store(true);
    WakeSleepers();
    for (std::thread& thread : threads_) thread.join();
  }

  bool is_forked() const { return process_.is_forked(); }

  void ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
    body_ = &body;
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    round_.store(((RoundOf(round_.load()) + 1) * kNextRound) | kOpen);
    WakeSleepers();
    Work(body, n);
    round_.fetch_and(~kOpen);
    if (look_) LookFor([this] { return InRound() == 0; });
    if (InRound() == 0) return;
    base::MutexLock lock(&mutex_);
    caller_sleeps_.store(true);
    while (InRound() > 0) done_.Wait(&mutex_);
    caller_sleeps_.store(false);
  }

 private:
  // The parts of round_, from the low bits up: the number of workers in the round, the flag that it
  // is open, and its number.
  static constexpr uint64_t kOpen = uint64_t{1} << 32;
  static constexpr uint64_t kNextRound = uint64_t{1} << 33;
  static uint64_t RoundOf(uint64_t round) { return round / kNextRound; }
  uint64_t InRound() const { return round_.load() & (kOpen - 1); }

  const base::ForkGuard process_;

  void Work(const std::function<void(int64_t)>& body, int64_t n) noexcept {
    const base::DefaultFloats floats;
    for (int64_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1)) body(i);
  }

  void Run() {
    uint64_t seen = 0;
    const auto is_new = [&] { return RoundOf(round_.load()) != seen || stop_.load(); };
    for (;;) {
      if (look_) LookFor(is_new);
      if (!is_new()) SleepUntil(is_new);
      if (stop_.load()) return;
      if (!Enter(&seen)) continue;
      Work(*body_, n_);
      Leave();
    }
  }

  // Enters the round; returns false if it is closed. Sets `seen` to its number in both cases.
  bool Enter(uint64_t* seen) {
    uint64_t round = round_.load();
    do {
      *seen = RoundOf(round);
      if ((round & kOpen) == 0) return false;
    } while (!round_.compare_exchange_weak(round, round + 1));
    return true;
  }

  void Leave() {
    const uint64_t left = round_.fetch_sub(1) - 1;
    if ((left & (kOpen - 1)) > 0 || !caller_sleeps_.load()) return;
    base::MutexLock lock(&mutex_);
    done_.NotifyAll();
  }

  // The sleeper and the thread that wakes it each write their own variable and then read the
  // other's, with sequentially consistent accesses. So either the sleeper sees the change, or the
  // other thread sees the sleeper.
  template <typename Ready>
  void SleepUntil(const Ready& ready) {
    base::MutexLock lock(&mutex_);
    sleepers_.fetch_add(1);
    while (!ready()) start_.Wait(&mutex_);
    sleepers_.fetch_sub(1);
  }

  void WakeSleepers() {
    if (sleepers_.load() == 0) return;
    base::MutexLock lock(&mutex_);
    start_.NotifyAll();
  }

  const bool look_;  // whether threads spin: only if each of them has a core
  // Written only while no worker is in a round.
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t n_ = 0;
  std::atomic<uint64_t> round_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};

  base::Mutex mutex_;
  base::CondVar start_;
  base::CondVar done_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::vector<std::thread> threads_;  // last, because they use the other members
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(num_threads, 1)) {
  if (num_threads_ > 1) workers_ = std::make_unique<Workers>(num_threads_ - 1);
}

// A forked process has no threads to join, so it leaks the workers.
ThreadPool::~ThreadPool() {
  if (workers_ == nullptr || !workers_->is_forked()) return;
  [[maybe_unused]] const Workers* const left = workers_.release();
}

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t)>& body) {
  if (workers_ == nullptr || n <= 1) {
    const base::DefaultFloats floats;
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  workers_->ParallelFor(n, body);
}

void ThreadPool::ParallelPortions(int64_t n, int64_t grain,
                                  const std::function<void(int64_t, int64_t)>& body) {
  ParallelFor((n + grain - 1) / grain,
              [&](int64_t portion) { body(portion * grain, std::min(n, (portion + 1) * grain)); });
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
