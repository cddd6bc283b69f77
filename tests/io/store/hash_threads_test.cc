// SPDX-License-Identifier: Apache-2.0

#include "io/store/hash_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "io/checksum.h"
#include "src/base/mutex.h"

namespace spillway::io {
namespace {

// Wakes the owner of the threads.
class Bell {
 public:
  void Ring() {
    base::MutexLock lock(&mu_);
    rung_ = true;
    condition_.NotifyAll();
  }
  void Wait() {
    base::MutexLock lock(&mu_);
    while (!rung_) condition_.Wait(&mu_);
    rung_ = false;
  }

 private:
  base::Mutex mu_;
  base::CondVar condition_;
  bool rung_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(HashThreads, HashesWhatItTookAndWakesItsOwner) {
  std::vector<std::byte> memory(1 << 20);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 131 >> 3);
  Bell bell;
  HashThreads threads(3, [&] { bell.Ring(); });
  constexpr uint64_t kJobs = 200;
  constexpr size_t kBytes = 5000;
  std::vector<int> times(kJobs, 0);
  std::vector<HashThreads::Job> done;
  uint64_t offered = 0, taken = 0;
  while (taken < kJobs) {
    while (offered < kJobs &&
           threads.Offer({1, offered, std::span(memory).subspan(offered * kBytes, kBytes)})) {
      ++offered;
    }
    done.clear();
    threads.TakeDone(/*will_wait=*/true, &done);
    if (done.empty()) bell.Wait();
    for (const HashThreads::Job& job : done) {
      EXPECT_EQ(job.checksum, Checksum(std::span(memory).subspan(job.page * kBytes, kBytes)));
      ++times[job.page];
      ++taken;
    }
  }
  for (const int n : times) EXPECT_EQ(n, 1);
  EXPECT_EQ(threads.pending(), 0);
}

TEST(HashThreads, TakesNothingWithoutThreads) {
  std::vector<std::byte> memory(4096);
  HashThreads none(0, [] {});
  EXPECT_FALSE(none.Offer({0, 0, memory}));
  std::vector<HashThreads::Job> done;
  none.TakeDone(true, &done);
  EXPECT_TRUE(done.empty());
}

// A job that a thread has begun reads the caller's memory, so the destructor waits for it.
TEST(HashThreads, EndsWithJobsUnderWay) {
  std::vector<std::byte> memory(64 << 20);
  HashThreads threads(2, [] {});
  for (uint64_t i = 0; i < 4; ++i) threads.Offer({0, i, memory});
}

}  // namespace
}  // namespace spillway::io
