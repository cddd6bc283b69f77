// SPDX-License-Identifier: Apache-2.0
//
// The interface between aligned memory and files: asynchronous positioned reads and writes. It
// handles file ids, offsets and buffers; the store handles extents and tensors.

#ifndef SPILLWAY_IO_IO_ENGINE_H_
#define SPILLWAY_IO_IO_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace spillway::io {

// A file that was added to one IoEngine.
struct FileId {
  int32_t value = -1;
  friend bool operator==(const FileId&, const FileId&) = default;
};

// Limits on the requests that are with the kernel at once on one device. io/request_queue.h says
// how the limits combine and how requests are counted.
struct QueueDepths {
  int read = 32;
  int write = 32;
  int mixed_write = 4;  // for writes while a read of the device waits or is in flight
  // The size of a request that counts as one. Smaller requests count as parts of one. If 0, each
  // request counts as one, whatever its size.
  uint32_t request_bytes = 0;
  friend bool operator==(const QueueDepths&, const QueueDepths&) = default;
};

enum class IoOp : uint8_t { kRead, kWrite };

// One transfer. Offset, size and buffer are multiples of kIoAlignment.
struct IoRequest {
  IoOp op = IoOp::kRead;
  FileId file;
  uint64_t offset = 0;
  std::byte* buffer = nullptr;
  uint32_t size_bytes = 0;
  uint64_t tag = 0;  // returned in the completion
};

// The result of a transfer. Ok means that every byte moved: the engine resumes short transfers.
// Otherwise the status names operation, file and offset (DataLoss for a read past the file's end;
// ErrnoToStatus for system errors).
struct IoCompletion {
  uint64_t tag = 0;
  absl::Status status;
};

inline constexpr uint64_t kIoAlignment = 4096;
inline constexpr int kMaxQueueDepth = 1024;

// The caller opens the files and keeps them open while the engine uses them. Submit, Reap and
// AddFile/AddBuffer are called by one thread at a time (the thread that builds the engine, later
// the mover), which may change only while nothing is in flight. Wake may be called from any thread.
// The destructor may run on any thread: it waits for transfers that the kernel has begun, and drops
// completions that were not reaped.
//
//   auto engine = MakeIoEngine(IoKind::kAuto, {}, folder);
//   FileId file = *(*engine)->AddFile(fd, "store/segment-0000", /*device=*/0);
//   const IoRequest request = {IoOp::kRead, file, 0, buffer, 1 << 20, /*tag=*/7};
//   (*engine)->Submit({&request, 1});
//   std::vector<IoCompletion> done;
//   (*engine)->Reap(absl::InfiniteDuration(), &done);
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "uring", "posix"

  // Adds a file. `path` is used in messages only. Files with the same `device` (a number that the
  // caller chooses, dense from zero) share that device's queues. The engine does not own fd.
  virtual absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) = 0;
  // Removes a file without waiting. REQUIRES: no request on the file is in flight.
  virtual absl::Status RemoveFile(FileId file) = 0;
  // Registers memory that requests will use, at most 1 GiB per call. Failure to register is not an
  // error: requests then use the memory unregistered, and unregistered_buffers() counts the buffer.
  virtual void AddBuffer(std::span<std::byte> memory) = 0;
  virtual void RemoveBuffers() = 0;
  virtual int unregistered_buffers() const = 0;

  // Sets the device's queue depths from now on. Each depth is clamped to a range of 1 to
  // kMaxQueueDepth, or to a lower maximum of the implementation. The initial depths come from
  // IoEngineOptions.
  virtual void SetDepths(uint16_t device, const QueueDepths& depths) = 0;

  // Takes any number of requests. As many are with the kernel at once as the devices' queues allow;
  // the others wait in the engine. On each device reads go before writes, and each kind goes in the
  // order of submission. A request that cannot be issued completes with its error.
  virtual void Submit(std::span<const IoRequest> requests) = 0;

  // Waits until there is at least one completion, Wake was called, or the timeout passes. Appends
  // the completions to `done`.
  virtual void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) = 0;

  // Makes the current Reap return, or the next one if none is waiting.
  virtual void Wake() = 0;

  // The number of requests that were submitted and not reaped.
  virtual int in_flight() const = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_IO_ENGINE_H_
