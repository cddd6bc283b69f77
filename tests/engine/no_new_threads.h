// SPDX-License-Identifier: Apache-2.0
//
// Makes the start of every thread fail, as it does where the process has reached a limit.

#ifndef SPILLWAY_TESTS_ENGINE_NO_NEW_THREADS_H_
#define SPILLWAY_TESTS_ENGINE_NO_NEW_THREADS_H_

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace spillway::engine {

// While it lives, std::thread throws. New threads are to have stacks for which no process has the
// addresses.
class NoNewThreads {
 public:
  NoNewThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge = before_;
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~NoNewThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }
  NoNewThreads(const NoNewThreads&) = delete;
  NoNewThreads& operator=(const NoNewThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_NO_NEW_THREADS_H_
