// SPDX-License-Identifier: Apache-2.0
//
// IoEngine on threads that call pread and pwrite, for machines where io_uring is absent or blocked.
// It has the same contract and uses more CPU time.

#ifndef SPILLWAY_IO_POSIX_IO_ENGINE_H_
#define SPILLWAY_IO_POSIX_IO_ENGINE_H_

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
#include "io/request_queue.h"
#include "io/transfer.h"
#include "src/base/mutex.h"

namespace spillway::io {

// Threads take requests in the order of RequestQueue, at most 8 reads and 8 writes of a device at
// once. Submit starts a thread for each request that no idle thread can take, up to 16 threads per
// device and 64 in total. Buffers need no registration: AddBuffer does nothing and
// unregistered_buffers() is 0. The destructor waits for the transfers that have begun and drops the
// rest.
class PosixIoEngine final : public IoEngine {
 public:
  // ResourceExhausted if no thread can be started.
  static absl::StatusOr<std::unique_ptr<PosixIoEngine>> Create(IoEngineOptions options);
  ~PosixIoEngine() override;

  std::string_view name() const override { return "posix"; }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) override;
  absl::Status RemoveFile(FileId file) override;
  void AddBuffer(std::span<std::byte> /*memory*/) override {}
  void RemoveBuffers() override {}
  int unregistered_buffers() const override { return 0; }
  void SetDepths(uint16_t device, const QueueDepths& depths) override;
  void Submit(std::span<const IoRequest> requests) override;
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override;
  void Wake() override;
  int in_flight() const override { return in_flight_; }

 private:
  explicit PosixIoEngine(IoEngineOptions options);

  absl::Status StartThread();
  void Work();
  void Run(Transfer& transfer) const;

  const IoEngineOptions options_;

  // Owned by the using thread.
  std::vector<std::thread> threads_;
  FileTable files_;
  int in_flight_ = 0;

  base::Mutex mutex_;
  base::CondVar work_;  // queue_ or stopping_ changed
  base::CondVar news_;  // finished_ or woken_ changed
  RequestQueue queue_ ABSL_GUARDED_BY(mutex_);
  int num_idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads without a request, also new ones
  std::vector<Transfer> finished_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_POSIX_IO_ENGINE_H_
