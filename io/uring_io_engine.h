// SPDX-License-Identifier: Apache-2.0
//
// IoEngine on io_uring: one ring, batched submission, registered buffers and files, a bounded
// number of requests with the kernel. MakeIoEngine decides whether io_uring is used on a machine.

#ifndef SPILLWAY_IO_URING_IO_ENGINE_H_
#define SPILLWAY_IO_URING_IO_ENGINE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/deadline.h"
#include "io/file_table.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"
#include "io/request_queue.h"
#include "io/ring.h"
#include "io/transfer.h"

namespace spillway::io {

// A ring serves one thread (see Ring): the first one that calls Submit or Reap. When another thread
// takes over (REQUIRES: nothing is in flight), the engine opens a new ring for it with the same
// files and buffers.
//
// If the kernel no longer serves the ring, the requests in flight and all later requests complete
// with an error that names the request and the cause.
class UringIoEngine final : public IoEngine {
 public:
  // The most requests of all devices that are with the kernel at once. Writes may take half of
  // them, so that one device may have kMaxQueueDepth writes. With the entry for the wake-up, they
  // fill a ring of a power of two, which takes 200 KiB.
  static constexpr int kMaxInFlight = 2 * kMaxQueueDepth - 1;

  // FailedPrecondition, naming the system call and the errno, if the kernel cannot set up a ring.
  static absl::StatusOr<std::unique_ptr<UringIoEngine>> Create(IoEngineOptions options);
  ~UringIoEngine() override;

  std::string_view name() const override { return "uring"; }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) override;
  absl::Status RemoveFile(FileId file) override;
  void AddBuffer(std::span<std::byte> memory) override;
  void RemoveBuffers() override;
  int unregistered_buffers() const override { return unregistered_buffers_; }
  void SetDepths(uint16_t device, const QueueDepths& depths) override;
  void Submit(std::span<const IoRequest> requests) override;
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override;
  void Wake() override;
  int in_flight() const override { return in_flight_; }

 private:
  struct Buffer {
    std::span<std::byte> memory;
    int index = -1;  // in the ring's table; -1: not registered
  };

  explicit UringIoEngine(IoEngineOptions options);

  // Functions that open, claim and close the ring. After Create, ring_ is null only after an error,
  // or if the ring was closed because it served another thread.
  absl::Status OpenRing();
  void CloseForeign();
  absl::Status EnsureNotForeign();
  absl::Status ClaimRing();
  void Drain();
  void CloseRing();
  void Break(absl::Status cause);
  void RegisterFile(FileId file);
  void RegisterBuffer(Buffer& buffer, int index);

  // Functions that process a request. It goes from queue_ to slots_ while it is in flight, and ends
  // as a completion.
  void SubmitQueued();
  void IssueQueued();
  void Issue(uint32_t slot);
  void ArmWake();
  // Processes the completions in the ring. Returns true if one was the wake-up.
  bool Harvest(std::vector<IoCompletion>* done);
  void Advance(uint32_t slot, int64_t result, std::vector<IoCompletion>* done);
  void Finish(const Transfer& transfer, std::vector<IoCompletion>* done);
  // These two are used when there is no ring.
  void FailAll(const absl::Status& status, std::vector<IoCompletion>* done);
  void WaitForWakeAlone(Deadline deadline);
  void ClearWake();
  const Buffer* FindBuffer(const Transfer& transfer) const;
  int with_kernel() const;

  // Constant after Create.
  const IoEngineOptions options_;
  int wake_fd_ = -1;  // an eventfd; any thread writes it

  // Owned by the using thread.
  std::unique_ptr<Ring> ring_;
  absl::Status broken_;  // why the engine opens no ring any more; ok if it may
  bool wake_armed_ = false;

  FileTable files_;
  std::vector<bool> file_registered_;  // by FileId
  std::vector<Buffer> buffers_;        // sorted by address
  int unregistered_buffers_ = 0;

  RequestQueue queue_;
  std::vector<Transfer> slots_;  // kMaxInFlight of them; an entry's user_data is its slot
  std::vector<uint32_t> free_slots_;
  std::deque<uint32_t> resume_;     // slots to issue again before queued requests
  std::vector<Transfer> rejected_;  // failed before they were queued
  std::vector<Transfer> orphaned_;  // in slots_ when their ring was closed
  int in_flight_ = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_URING_IO_ENGINE_H_
