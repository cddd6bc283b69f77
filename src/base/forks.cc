// SPDX-License-Identifier: Apache-2.0

#include "src/base/forks.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "src/base/mutex.h"

namespace spillway::base {
namespace {

std::atomic<uint64_t> num_forks = 0;

// The descriptors that children must not have. The lock is held during a fork, so that the child
// finds the list whole.
struct Closed {
  Mutex mutex;
  std::vector<int> fds ABSL_GUARDED_BY(mutex);
};

Closed& TheClosed() {
  static Closed& closed = *new Closed;
  return closed;
}

void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { TheClosed().mutex.Lock(); }
void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS { TheClosed().mutex.Unlock(); }
void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (const int fd : TheClosed().fds) ::close(fd);
  TheClosed().fds.clear();
  TheClosed().mutex.Unlock();
}

}  // namespace

uint64_t NumForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++num_forks; });
  (void)registered;  // if there was no memory for it, forks are not counted
  return num_forks.load(std::memory_order_relaxed);
}

void CloseInChildren(int fd) {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)registered;  // if there was no memory for it, children keep the descriptors
  MutexLock lock(&TheClosed().mutex);
  TheClosed().fds.push_back(fd);
}

void KeepInChildren(int fd) {
  MutexLock lock(&TheClosed().mutex);
  std::vector<int>& fds = TheClosed().fds;
  fds.erase(std::remove(fds.begin(), fds.end(), fd), fds.end());
}

}  // namespace spillway::base
