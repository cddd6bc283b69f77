// SPDX-License-Identifier: Apache-2.0

#include "io/posix_io_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/deadline.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr int kMaxThreads = 8;

// One system call for what remains of the transfer; its result or the negative errno.
int64_t MovePiece(const Transfer& transfer) {
  const auto offset = static_cast<off_t>(transfer.offset());
  const ssize_t moved =
      transfer.request().op == IoOp::kRead
          ? ::pread(transfer.fd(), transfer.buffer(), transfer.size_bytes(), offset)
          : ::pwrite(transfer.fd(), transfer.buffer(), transfer.size_bytes(), offset);
  return moved < 0 ? -errno : moved;
}

// 1, 2, 4, ... µs and at most 1 ms: 32 tries in a row take some 23 ms.
void BackOff(int stalls) {
  std::this_thread::sleep_for(std::chrono::microseconds(1 << std::min(stalls - 1, 10)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PosixIoEngine>> PosixIoEngine::Create(IoEngineOptions options) {
  std::unique_ptr<PosixIoEngine> engine(new PosixIoEngine(std::move(options)));
  const int num_threads = std::min(engine->options_.queue_depth, kMaxThreads);
  for (int i = 0; i < num_threads; ++i) {
    try {
      engine->threads_.emplace_back(&PosixIoEngine::Work, engine.get());
    } catch (const std::system_error& error) {
      if (i > 0) break;  // fewer threads do the same work
      return absl::ResourceExhaustedError(absl::StrCat("starting an I/O thread: ", error.what()));
    }
  }
  return engine;
}

PosixIoEngine::~PosixIoEngine() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.clear();
  }
  work_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<FileId> PosixIoEngine::AddFile(int fd, std::string path) {
  return files_.Add(fd, std::move(path));
}

absl::Status PosixIoEngine::RemoveFile(FileId file) { return files_.Remove(file); }

void PosixIoEngine::Submit(std::span<const IoRequest> requests) {
  in_flight_ += static_cast<int>(requests.size());
  {
    base::MutexLock lock(&mutex_);
    for (const IoRequest& request : requests) {
      const Transfer transfer(request, files_.fd(request.file));
      if (transfer.state() == Transfer::State::kFailed) {
        finished_.push_back(transfer);
      } else {
        queue_.push_back(transfer);
      }
    }
  }
  if (requests.size() == 1) {
    work_.NotifyOne();
  } else {
    work_.NotifyAll();
  }
}

void PosixIoEngine::Reap(absl::Duration timeout, std::vector<IoCompletion>* done) {
  const Deadline deadline = Deadline::After(timeout);
  std::vector<Transfer> finished;
  {
    base::MutexLock lock(&mutex_);
    while (finished_.empty() && !woken_ && !deadline.passed()) {
      if (deadline.is_never()) {
        news_.Wait(&mutex_);
      } else {
        news_.WaitUntil(&mutex_, deadline.at());
      }
    }
    woken_ = false;
    finished.swap(finished_);
  }
  for (const Transfer& transfer : finished) {
    const IoRequest& request = transfer.request();
    done->push_back({request.tag, transfer.ToStatus(files_.path(request.file))});
  }
  in_flight_ -= static_cast<int>(finished.size());
}

void PosixIoEngine::Wake() {
  base::MutexLock lock(&mutex_);
  woken_ = true;
  news_.NotifyOne();
}

void PosixIoEngine::Work() {
  base::MutexLock lock(&mutex_);
  for (;;) {
    while (queue_.empty() && !stopping_) work_.Wait(&mutex_);
    if (stopping_) return;
    Transfer transfer = queue_.front();
    queue_.pop_front();
    mutex_.Unlock();
    Run(transfer);
    mutex_.Lock();
    finished_.push_back(transfer);
    news_.NotifyOne();
  }
}

void PosixIoEngine::Run(Transfer& transfer) const {
  for (;;) {
    int64_t result = MovePiece(transfer);
    if (options_.result_hook) result = options_.result_hook(transfer.request(), result);
    if (transfer.Advance(result) != Transfer::State::kMoving) return;
    if (transfer.stalls() > 0) BackOff(transfer.stalls());
  }
}

}  // namespace spillway::io
