// SPDX-License-Identifier: Apache-2.0

#include "io/store/hash_threads.h"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "io/checksum.h"
#include "src/base/clock.h"

namespace spillway::io {
namespace {

constexpr int kMaxHashThreads = 8;
// Queued jobs for each thread, so that a thread finds the next job when it ends one.
constexpr size_t kJobsPerThread = 2;

}  // namespace

int DefaultHashThreads() {
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return std::clamp(CPU_COUNT(&cpus), 1, kMaxHashThreads);
}

HashThreads::HashThreads(int num_threads, std::function<void()> wake)
    : num_threads_(num_threads), wake_(std::move(wake)) {}

HashThreads::~HashThreads() {
  {
    base::MutexLock lock(&mu_);
    stop_ = true;
    queue_.clear();
  }
  work_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

// Starts as many threads as the system allows. If it allows none, the caller does all the hashing.
void HashThreads::Start() {
  started_ = true;
  bool is_refused = false;
  for (int i = 0; i < num_threads_ && !is_refused; ++i) {
    try {
      threads_.emplace_back(&HashThreads::Run, this);
    } catch (const std::system_error&) {
      is_refused = true;
    }
  }
}

bool HashThreads::Offer(const Job& job) {
  if (!started_) Start();
  if (threads_.empty()) return false;
  {
    base::MutexLock lock(&mu_);
    if (queue_.size() >= kJobsPerThread * threads_.size()) return false;
    queue_.push_back(job);
  }
  work_.NotifyOne();
  ++pending_;
  return true;
}

void HashThreads::TakeDone(bool will_wait, std::vector<Job>* done) {
  if (pending_ == 0) return;
  base::MutexLock lock(&mu_);
  pending_ -= static_cast<int>(done_.size());
  owner_waits_ = will_wait && done_.empty();
  done->insert(done->end(), done_.begin(), done_.end());
  done_.clear();
}

void HashThreads::Run() {
  while (true) {
    Job job;
    {
      base::MutexLock lock(&mu_);
      while (queue_.empty() && !stop_) work_.Wait(&mu_);
      if (stop_) return;
      job = queue_.front();
      queue_.pop_front();
    }
    const int64_t start = base::ThreadCpuNs();
    job.checksum = Checksum(job.content);
    job.cpu_seconds = static_cast<double>(base::ThreadCpuNs() - start) / 1e9;
    bool wake = false;
    {
      base::MutexLock lock(&mu_);
      done_.push_back(job);
      wake = std::exchange(owner_waits_, false);
    }
    if (wake) wake_();
  }
}

}  // namespace spillway::io
