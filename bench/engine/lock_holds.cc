// SPDX-License-Identifier: Apache-2.0

#include "bench/engine/lock_holds.h"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "src/base/clock.h"

namespace spillway::bench {
namespace {

std::atomic<uint64_t> holds, over_200us, over_5ms;
std::atomic<int64_t> longest_cpu_ns, longest_wall_ns, sum_cpu_ns;

void Raise(std::atomic<int64_t>& most, int64_t to) {
  int64_t now = most.load(std::memory_order_relaxed);
  while (now < to && !most.compare_exchange_weak(now, to)) {
  }
}

struct Hold {
  const pthread_mutex_t* mutex = nullptr;
  int64_t cpu_ns = 0, wall_ns = 0;
};

// The mutexes that the thread holds. Those beyond the array's size are not measured.
thread_local std::array<Hold, 8> held;
thread_local size_t num_held = 0;

void Begin(const pthread_mutex_t* mutex) {
  if (num_held < held.size()) held[num_held] = {mutex, base::ThreadCpuNs(), base::NowNs()};
  ++num_held;
}

void End(const pthread_mutex_t* mutex) {
  const size_t known = num_held < held.size() ? num_held : held.size();
  for (size_t i = known; i > 0; --i) {
    if (held[i - 1].mutex != mutex) continue;
    const int64_t cpu_ns = base::ThreadCpuNs() - held[i - 1].cpu_ns;
    Raise(longest_cpu_ns, cpu_ns);
    Raise(longest_wall_ns, base::NowNs() - held[i - 1].wall_ns);
    holds.fetch_add(1, std::memory_order_relaxed);
    sum_cpu_ns.fetch_add(cpu_ns, std::memory_order_relaxed);
    if (cpu_ns > 200'000) over_200us.fetch_add(1, std::memory_order_relaxed);
    if (cpu_ns > 5'000'000) over_5ms.fetch_add(1, std::memory_order_relaxed);
    held[i - 1] = held[known - 1];
    break;
  }
  if (num_held > 0) --num_held;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

LockHolds TakeLockHolds() {
  return {.holds = holds.exchange(0),
          .over_200us = over_200us.exchange(0),
          .over_5ms = over_5ms.exchange(0),
          .longest_cpu_ns = longest_cpu_ns.exchange(0),
          .longest_wall_ns = longest_wall_ns.exchange(0),
          .cpu_seconds = static_cast<double>(sum_cpu_ns.exchange(0)) * 1e-9};
}

}  // namespace spillway::bench

using spillway::bench::Begin;
using spillway::bench::End;
using spillway::bench::Next;

// The C++ runtime, a shared library, waits with these functions too. It finds them here only if
// they are exported; otherwise a hold would seem to last through the wait.
#pragma GCC visibility push(default)
extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  const int error = next(mutex);
  if (error == 0) Begin(mutex);
  return error;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_trylock");
  const int error = next(mutex);
  if (error == 0) Begin(mutex);
  return error;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  End(mutex);
  return next(mutex);
}

int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* mutex) {
  static auto* const next = Next<int(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  End(mutex);
  const int error = next(cond, mutex);
  Begin(mutex);
  return error;
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const timespec* until) {
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  End(mutex);
  const int error = next(cond, mutex, until);
  Begin(mutex);
  return error;
}

int pthread_cond_clockwait(pthread_cond_t* cond, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  End(mutex);
  const int error = next(cond, mutex, clock, until);
  Begin(mutex);
  return error;
}

}  // extern "C"
#pragma GCC visibility pop
