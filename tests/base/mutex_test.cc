// SPDX-License-Identifier: Apache-2.0

#include "src/base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace spillway::base {
namespace {

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value ABSL_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, KeepsIncrementsOfManyThreadsApart) {
  constexpr int kThreads = 4;
  constexpr int kIncrements = 1000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&counter] {
      for (int j = 0; j < kIncrements; ++j) {
        MutexLock lock(&counter.mutex);
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kIncrements);
}

TEST(CondVar, AWaiterSeesWhatTheNotifierWrote) {
  Counter counter;
  std::thread notifier([&counter] {
    MutexLock lock(&counter.mutex);
    counter.value = 7;
    counter.changed.NotifyOne();
  });
  {
    MutexLock lock(&counter.mutex);
    while (counter.value == 0) counter.changed.Wait(&counter.mutex);
    EXPECT_EQ(counter.value, 7);
  }
  notifier.join();
}

TEST(CondVar, ADeadlineThatHasPassedEndsTheWaitWithTheLockHeld) {
  Counter counter;
  MutexLock lock(&counter.mutex);
  const auto past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_FALSE(counter.changed.WaitUntil(&counter.mutex, past));
  counter.value = 1;
}

}  // namespace
}  // namespace spillway::base
