// SPDX-License-Identifier: Apache-2.0

#include "src/base/forks.h"

#include <pthread.h>

#include <atomic>

namespace spillway::base {
namespace {

std::atomic<uint64_t> num_forks = 0;

}  // namespace

uint64_t NumForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++num_forks; });
  (void)registered;  // if there was no memory for it, forks are not counted
  return num_forks.load(std::memory_order_relaxed);
}

}  // namespace spillway::base
