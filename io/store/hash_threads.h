// SPDX-License-Identifier: Apache-2.0
//
// Threads that compute page checksums for one PageIo while its own thread cannot keep up with the
// devices. They start with the first job, so a run whose devices are slower than one thread's
// hashing has none of them.

#ifndef SPILLWAY_IO_STORE_HASH_THREADS_H_
#define SPILLWAY_IO_STORE_HASH_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "src/base/mutex.h"

namespace spillway::io {

// The processors that this process may use, at most eight: more threads than that read memory no
// faster.
int DefaultHashThreads();

// Offer, TakeDone and the destructor belong to one thread.
class HashThreads {
 public:
  struct Job {
    uint32_t operation = 0;  // both are the caller's names for the page
    uint64_t page = 0;
    std::span<const std::byte> content;  // stays as it is until the job is done
    uint64_t checksum = 0;               // the result
    double cpu_seconds = 0;              // that it took
  };

  // `wake` is called from one of the threads when a job ends that the owner waits for.
  HashThreads(int num_threads, std::function<void()> wake);
  HashThreads(const HashThreads&) = delete;
  HashThreads& operator=(const HashThreads&) = delete;
  // Waits for jobs that a thread has begun; drops the others.
  ~HashThreads();

  // False: every thread has enough to do, or none could be started. The caller keeps the job.
  bool Offer(const Job& job);
  // Appends the jobs that are done. With `will_wait`, if there is none, `wake` is called when the
  // next one ends.
  void TakeDone(bool will_wait, std::vector<Job>* done);
  // Jobs accepted and not taken yet.
  int pending() const { return pending_; }

 private:
  void Start();
  void Run();

  // Constant.
  const int num_threads_;
  const std::function<void()> wake_;
  // The owner's.
  int pending_ = 0;
  bool started_ = false;
  std::vector<std::thread> threads_;

  base::Mutex mu_;
  base::CondVar work_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool owner_waits_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<Job> done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_HASH_THREADS_H_
