// SPDX-License-Identifier: Apache-2.0

#include "io/posix_io_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "io/deadline.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr int kMaxDepth = 8;  // per device: more threads cost more and move no more
constexpr int kMaxThreads = 64;

// Makes one system call for the rest of the transfer. Returns its result or the negative errno.
int64_t MovePiece(const Transfer& transfer) {
  const auto offset = static_cast<off_t>(transfer.offset());
  const ssize_t moved =
      transfer.request().op == IoOp::kRead
          ? ::pread(transfer.fd(), transfer.buffer(), transfer.size_bytes(), offset)
          : ::pwrite(transfer.fd(), transfer.buffer(), transfer.size_bytes(), offset);
  return moved < 0 ? -errno : moved;
}

// Sleeps 1, 2, 4, ... µs and at most about 1 ms: 32 tries in a row take about 23 ms.
void BackOff(int stalls) {
  std::this_thread::sleep_for(std::chrono::microseconds(1 << std::min(stalls - 1, 10)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PosixIoEngine>> PosixIoEngine::Create(IoEngineOptions options) {
  std::unique_ptr<PosixIoEngine> engine(new PosixIoEngine(std::move(options)));
  SPILLWAY_RETURN_IF_ERROR(engine->StartThread());
  return engine;
}

PosixIoEngine::PosixIoEngine(IoEngineOptions options)
    : options_(std::move(options)),
      queue_(DefaultDepths(std::min(options_.queue_depth, kMaxDepth)), kMaxThreads) {}

absl::Status PosixIoEngine::StartThread() {
  const auto count_idle = [this](int more) {
    base::MutexLock lock(&mutex_);
    num_idle_ += more;
  };
  count_idle(1);
  try {
    threads_.emplace_back(&PosixIoEngine::Work, this);
  } catch (const std::system_error& error) {
    count_idle(-1);
    return base::ThreadErrorToStatus(error.code().value(), "an I/O thread");
  }
  return absl::OkStatus();
}

PosixIoEngine::~PosixIoEngine() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.TakeWaiting();
  }
  work_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<FileId> PosixIoEngine::AddFile(int fd, std::string path, uint16_t device) {
  return files_.Add(fd, std::move(path), device);
}

absl::Status PosixIoEngine::RemoveFile(FileId file) { return files_.Remove(file); }

void PosixIoEngine::SetDepths(uint16_t device, const QueueDepths& depths) {
  QueueDepths threads = ClampDepths(depths, kMaxDepth);
  threads.request_bytes = 0;  // a request takes a thread, whatever its size
  base::MutexLock lock(&mutex_);
  queue_.SetDepths(device, threads);
}

void PosixIoEngine::Submit(std::span<const IoRequest> requests) {
  in_flight_ += static_cast<int>(requests.size());
  int num_wanted = 0;
  {
    base::MutexLock lock(&mutex_);
    for (const IoRequest& request : requests) {
      const Transfer transfer(request, files_.fd(request.file), files_.device(request.file));
      if (transfer.state() == Transfer::State::kFailed) {
        finished_.push_back(transfer);
      } else {
        queue_.Add(transfer);
      }
    }
    // An idle thread may have been notified of an earlier request, which then still waits.
    num_wanted = static_cast<int>(queue_.num_waiting()) - num_idle_;
  }
  if (requests.size() == 1) {
    work_.NotifyOne();
  } else {
    work_.NotifyAll();
  }
  // If a thread cannot be started, the existing threads do the work.
  const size_t enough = std::min<size_t>(kMaxThreads, 2 * kMaxDepth * files_.num_devices());
  while (num_wanted-- > 0 && threads_.size() < enough && StartThread().ok()) {
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
    std::optional<Transfer> transfer;
    while (!stopping_ && !(transfer = queue_.Take())) work_.Wait(&mutex_);
    if (stopping_) return;
    --num_idle_;
    mutex_.Unlock();
    Run(*transfer);
    mutex_.Lock();
    ++num_idle_;
    queue_.Ended(*transfer);
    finished_.push_back(*transfer);
    news_.NotifyOne();
    // The end of a read may allow several writes to start. This thread takes only one of them.
    if (queue_.num_waiting() > 0 && num_idle_ > 1) work_.NotifyAll();
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
