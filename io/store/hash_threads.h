// SPDX-License-Identifier: Apache-2.0
//
// Threads that compute page checksums for one PageIo when its own thread cannot keep up with the
// devices. They start with the first job, so a run whose devices are slower than one thread's
// hashing starts none.

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

// Returns the number of processors that this process may use, but at most eight: more threads do
// not read memory faster.
int DefaultHashThreads();

// One thread, the owner, calls Offer, TakeDone, pending and the destructor.
class HashThreads {
 public:
  struct Job {
    uint32_t operation = 0;  // operation and page identify the page to the caller
    uint64_t page = 0;
    std::span<const std::byte> content;  // must not change until the job is done
    uint64_t checksum = 0;               // result
    double cpu_seconds = 0;              // result: CPU time that the checksum took
  };

  // `wake` is called from one of the threads when a job ends that the owner waits for (TakeDone).
  HashThreads(int num_threads, std::function<void()> wake);
  HashThreads(const HashThreads&) = delete;
  HashThreads& operator=(const HashThreads&) = delete;
  // Waits for the jobs that threads have begun, and drops the others.
  ~HashThreads();

  int num_threads() const { return num_threads_; }
  // Queues the job. Returns false if the queue is full or no thread could be started; the job is
  // not taken then.
  bool Offer(const Job& job);
  // Appends the jobs that are done. If `will_wait` is true and no job is done, `wake` is called
  // when the next one ends.
  void TakeDone(bool will_wait, std::vector<Job>* done);
  // Jobs that Offer accepted and TakeDone has not returned yet.
  int pending() const { return pending_; }

 private:
  void Start();
  void Run();

  // Constant after construction.
  const int num_threads_;
  const std::function<void()> wake_;
  // Used only by the owner.
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
