// SPDX-License-Identifier: Apache-2.0
//
// The seam between aligned memory and files: asynchronous positioned reads and writes. It knows
// files and buffers as numbers; extents and tensors are the store's.

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

// A file known to one IoEngine.
struct FileId {
  int32_t value = -1;
  friend bool operator==(const FileId&, const FileId&) = default;
};

// Requests with the kernel at once on one device; io/request_queue.h says how they act together.
struct QueueDepths {
  int read = 32;
  int write = 32;
  int mixed_write = 4;  // writes while a read of the device waits or is in flight
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
  uint64_t tag = 0;  // comes back in the completion
};

// A transfer's end. Ok means that every byte moved: short transfers were resumed inside. Otherwise
// the status names operation, file and offset (DataLoss for a read past the file's end;
// ErrnoToStatus for the rest).
struct IoCompletion {
  uint64_t tag = 0;
  absl::Status status;
};

inline constexpr uint64_t kIoAlignment = 4096;
inline constexpr int kMaxQueueDepth = 1024;

// Files must be opened by the caller and outlive the engine's use of them. Submit, Reap and
// AddFile/AddBuffer belong to one thread at a time (the mover; before it starts, whoever builds the
// engine), which may change while nothing is in flight; Wake may be called from any thread. The
// destructor may run on any thread: it waits for transfers that the kernel has begun, and what was
// not reaped is dropped.
//
//   auto engine = MakeIoEngine(IoEngineKind::kAuto, {}, folder);
//   FileId file = *(*engine)->AddFile(fd, "store/segment-0000", /*device=*/0);
//   const IoRequest request = {IoOp::kRead, file, 0, buffer, 1 << 20, /*tag=*/7};
//   (*engine)->Submit({&request, 1});
//   std::vector<IoCompletion> done;
//   (*engine)->Reap(absl::InfiniteDuration(), &done);
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "uring", "posix"

  // `path` is for messages; files of one `device` (dense from zero, the caller's to choose) share
  // its queues. The engine does not own fd.
  virtual absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) = 0;
  // Waits for nothing: no request on the file may be in flight.
  virtual absl::Status RemoveFile(FileId file) = 0;
  // Announces memory that requests will use, so that it can be registered; at most 1 GiB a call.
  // Failure to register is not an error: requests then take the plain path, counted in
  // unregistered_buffers().
  virtual void AddBuffer(std::span<std::byte> memory) = 0;
  virtual void RemoveBuffers() = 0;
  virtual int unregistered_buffers() const = 0;

  // What the device is given at once from now on; each depth is brought into 1 to kMaxQueueDepth.
  // Until then it is what IoEngineOptions say.
  virtual void SetDepths(uint16_t device, const QueueDepths& depths) = 0;

  // Takes any number of requests; as many are with the kernel at once as the device's queues allow,
  // the rest wait inside: reads before writes, each in order. A request that cannot be issued
  // completes with its error.
  virtual void Submit(std::span<const IoRequest> requests) = 0;

  // Appends completions to `done`: waits until there is at least one, Wake was called, or the
  // timeout passes.
  virtual void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) = 0;

  // Makes the current (or else the next) Reap return.
  virtual void Wake() = 0;

  // Requests submitted and not reaped.
  virtual int in_flight() const = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_IO_ENGINE_H_
