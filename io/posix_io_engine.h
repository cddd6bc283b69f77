// SPDX-License-Identifier: Apache-2.0
//
// IoEngine on threads that call pread and pwrite: for where io_uring is absent or blocked. The same
// contract at a higher cost of CPU.

#ifndef SPILLWAY_IO_POSIX_IO_ENGINE_H_
#define SPILLWAY_IO_POSIX_IO_ENGINE_H_

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/file_table.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"
#include "io/transfer.h"
#include "src/base/mutex.h"

namespace spillway::io {

// min(queue_depth, 8) threads take requests in the order of submission. Buffers need no
// registration here: AddBuffer does nothing and unregistered_buffers() is 0. The destructor waits
// for the transfers that threads are in and drops the rest.
class PosixIoEngine final : public IoEngine {
 public:
  // ResourceExhausted if no thread can be started.
  static absl::StatusOr<std::unique_ptr<PosixIoEngine>> Create(IoEngineOptions options);
  ~PosixIoEngine() override;

  std::string_view name() const override { return "posix"; }
  absl::StatusOr<FileId> AddFile(int fd, std::string path) override;
  absl::Status RemoveFile(FileId file) override;
  void AddBuffer(std::span<std::byte> /*memory*/) override {}
  void RemoveBuffers() override {}
  int unregistered_buffers() const override { return 0; }
  void Submit(std::span<const IoRequest> requests) override;
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override;
  void Wake() override;
  int in_flight() const override { return in_flight_; }

 private:
  explicit PosixIoEngine(IoEngineOptions options) : options_(std::move(options)) {}

  void Work();
  void Run(Transfer& transfer) const;

  // Constant after Create.
  const IoEngineOptions options_;
  std::vector<std::thread> threads_;

  // Owned by the using thread.
  FileTable files_;
  int in_flight_ = 0;

  base::Mutex mutex_;
  base::CondVar work_;  // queue_ or stopping_ changed
  base::CondVar news_;  // finished_ or woken_ changed
  std::deque<Transfer> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Transfer> finished_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_POSIX_IO_ENGINE_H_
