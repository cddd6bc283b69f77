// SPDX-License-Identifier: Apache-2.0

#include "spillway/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace spillway {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Range = std::pair<int64_t, int64_t>;

// Returns the ranges that ParallelRanges makes, in order.
std::vector<Range> RangesOf(ThreadPool& pool, int64_t n, int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.ParallelRanges(n, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(ThreadPool, RunsEveryIndexOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(static_cast<size_t>(n), 0);  // plain ints: each has one writer
      pool.ParallelFor(n, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), n) << threads << " threads, n = " << n;
    }
  }
}

TEST(ThreadPool, FewerThanOneThreadIsTheCaller) {
  ThreadPool pool(-3);
  EXPECT_EQ(pool.num_threads(), 1);
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(5, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ThreadPool, TheThreadsRunAtTheSameTime) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  // Each index waits for the others. With one thread fewer, this would never end.
  pool.ParallelFor(kThreads, [&](int64_t) {
    arrived.fetch_add(1);
    while (arrived.load() < kThreads) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), kThreads);
}

TEST(ThreadPool, WhatTheBodiesWroteIsSeenByTheCallerAndByTheNextRound) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.ParallelFor(64, [&](int64_t i) { ++values[static_cast<size_t>(i)]; });
    if (round % 100 == 0) {
      ASSERT_EQ(std::count(values.begin(), values.end(), round), 64) << "round " << round;
    }
  }
}

TEST(ThreadPool, WorkersThatWentToSleepWakeAgain) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    pool.ParallelFor(3, [&](int64_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 3) std::this_thread::yield();
    });
  }
}

// The caller finds no index left and sleeps until the worker's index has ended.
TEST(ThreadPool, TheCallerWaitsForALateWorker) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> entered{0}, ended{0};
    pool.ParallelFor(2, [&](int64_t) {
      entered.fetch_add(1);
      while (entered.load() < 2) std::this_thread::yield();  // one index for each thread
      if (std::this_thread::get_id() != caller)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ended.fetch_add(1);
    });
    ASSERT_EQ(ended.load(), 2) << "round " << round;
  }
}

TEST(ThreadPool, IsDestroyedWithOrWithoutHavingWorked) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool idle(4);
    ThreadPool used(4);
    used.ParallelFor(4, [](int64_t) {});
  }
}

TEST(ThreadPool, RangesCoverAllAndBeginAtMultiplesOfTheGrain) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t n : {1, 5, 64, 100, 1001}) {
      for (const int64_t grain : {1, 8, 64, 5000}) {
        int64_t next = 0;
        const std::vector<Range> ranges = RangesOf(pool, n, grain);
        EXPECT_LE(ranges.size(), static_cast<size_t>(threads));
        for (const auto& [begin, end] : ranges) {
          EXPECT_EQ(begin, next);
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LT(begin, end);
          next = end;
        }
        EXPECT_EQ(next, n) << threads << " threads, grain " << grain;
      }
    }
  }
}

TEST(ThreadPool, PortionsCoverAllOnceAndEndAtMultiplesOfTheGrain) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 63, 64, 65, 1000}) {
      std::mutex mutex;
      std::vector<Range> portions;
      pool.ParallelPortions(n, 64, [&](int64_t begin, int64_t end) {
        const std::lock_guard<std::mutex> lock(mutex);
        portions.emplace_back(begin, end);
      });
      std::sort(portions.begin(), portions.end());
      std::vector<Range> expected;
      for (int64_t begin = 0; begin < n; begin += 64)
        expected.emplace_back(begin, std::min(n, begin + 64));
      EXPECT_EQ(portions, expected) << threads << " threads, n = " << n;
    }
  }
}

// Half of the least normal number, computed at run time: a denormal, unless these are flushed.
float Denormal() {
  volatile float least = std::numeric_limits<float>::min();
  return least * 0.5f;
}

TEST(ThreadPool, BodiesComputeAlikeWhateverTheCallersEnvironmentIs) {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_DOWNWARD);
#if defined(__SSE__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  EXPECT_EQ(Denormal(), 0.0f);
#endif
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);  // new threads start with the caller's environment
    for (const int64_t n : {1, 64}) {
      std::atomic<int> alike = 0;
      pool.ParallelFor(n, [&](int64_t) {
        if (std::fegetround() == FE_TONEAREST && Denormal() > 0) ++alike;
      });
      EXPECT_EQ(alike, n) << threads << " threads";
    }
  }
  EXPECT_EQ(std::fegetround(), FE_DOWNWARD) << "the caller's environment stays";
  std::fesetenv(&before);
}

TEST(ThreadPool, RangesFollowFromTheirArgumentsAlone) {
  ThreadPool two(2);
  EXPECT_THAT(RangesOf(two, 100, 32), ElementsAre(Range(0, 64), Range(64, 100)));
  EXPECT_THAT(RangesOf(two, 100, 64), ElementsAre(Range(0, 64), Range(64, 100)));
  EXPECT_THAT(RangesOf(two, 100, 128), ElementsAre(Range(0, 100)));
  EXPECT_THAT(RangesOf(two, 0, 128), IsEmpty());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(RangesOf(two, 12345, 16), RangesOf(two, 12345, 16));
}

}  // namespace
}  // namespace spillway
