// SPDX-License-Identifier: Apache-2.0
//
// The interface between the engine and a device: memory, streams, events and copies, with CUDA's
// semantics. HostRuntime implements it on ordinary memory with threads, so that a machine without a
// GPU runs the same engine.

#ifndef SPILLWAY_TIERS_DEVICE_RUNTIME_H_
#define SPILLWAY_TIERS_DEVICE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::tiers {

// Opaque handles, valid until destroyed.
struct StreamHandle {
  void* value = nullptr;
  friend bool operator==(const StreamHandle&, const StreamHandle&) = default;
};
struct EventHandle {
  void* value = nullptr;
  friend bool operator==(const EventHandle&, const EventHandle&) = default;
};

enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost };

using Notification = std::function<void(const absl::Status& status)>;

// Thread-safe. Use of a handle that was never made, or was destroyed, is a programming error
// (CHECK).
//
// The semantics are CUDA's: work on a stream runs in launch order, and streams run concurrently.
// Record marks the work launched on the stream so far. An event that was never recorded counts as
// complete. Recording again moves the mark; a Wait that was already launched keeps the mark that it
// found. Wait makes later work on the stream wait and does not block the caller.
//
// A device may be lost (a kernel's illegal access, a GPU that fell off its bus). Every call that
// needs the device then returns Aborted, and work in flight ends with that status, so that nothing
// waits for ever.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string name() const = 0;  // "host", or the GPU's name
  // Ok, or Aborted if the device is known to be lost. Nothing may be committed any more then.
  virtual absl::Status Check() const = 0;
  // The largest size that an arena should have now: the physical memory of the host; on a GPU, the
  // free memory less a share for kernels.
  virtual uint64_t usable_bytes() const = 0;

  // Allocates one range of device memory, aligned to 2 MiB. The host commits memory on first touch.
  // ResourceExhausted if that fails; the message names the requested size and the limit.
  virtual absl::StatusOr<std::byte*> AllocateArena(uint64_t size_bytes) = 0;
  virtual void FreeArena(std::byte* arena, uint64_t size_bytes) = 0;

  // Registers a range of host memory with the device for asynchronous copies (cudaHostRegister).
  // The same range must be unregistered before its memory is freed. Both are no-ops on the host.
  virtual absl::Status RegisterHostMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterHostMemory(std::span<std::byte> memory) = 0;

  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  // Makes a handle for a stream that the caller owns (cudaStream_t), which must outlive the handle.
  // InvalidArgument if the device supports only streams that CreateStream made, and for
  // cudaStreamPerThread, which is a different stream in each thread.
  virtual absl::StatusOr<StreamHandle> WrapStream(void* native) = 0;
  // FailedPrecondition: the stream is being captured into a CUDA graph, so what is launched there
  // does not run.
  virtual absl::Status CheckStream(StreamHandle stream) = 0;
  // Waits for the stream's notifications and closures, and for all of its work unless the caller
  // owns the stream.
  virtual void DestroyStream(StreamHandle stream) = 0;
  // Runs a closure on the host in stream order: work launched later waits for it. The closure must
  // not call the runtime, and must not wait for another stream's closure, because a GPU may run
  // closures one at a time. On a lost device the closure does not run.
  virtual absl::Status Launch(StreamHandle stream, std::function<void()> work) = 0;
  // Calls `notification`, on a thread of the runtime, when the work launched on the stream so far
  // has ended. If Notify returned ok, calls it exactly once: with ok, or with the error of the
  // wait, after which the work may still be running. Work launched later need not wait for the
  // call, so that a GPU can continue meanwhile. The notification must not call the runtime.
  // FailedPrecondition: the stream is being captured into a CUDA graph.
  virtual absl::Status Notify(StreamHandle stream, Notification notification) = 0;
  // REQUIRES: the memory on the host's side is registered. After an error, parts of the copy may be
  // in flight.
  virtual absl::Status CopyAsync(StreamHandle stream, CopyDirection direction, void* destination,
                                 const void* source, uint64_t size_bytes) = 0;
  // Returns once the work launched so far has ended and its notifications have been called. After
  // an error, the work may still be running. FailedPrecondition as for Notify.
  virtual absl::Status Synchronize(StreamHandle stream) = 0;
  virtual void* native_handle(StreamHandle stream) = 0;

  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  virtual absl::Status Wait(StreamHandle stream, EventHandle event) = 0;  // as Notify if captured
  virtual absl::StatusOr<bool> Query(EventHandle event) = 0;
  virtual absl::Status Synchronize(EventHandle event) = 0;
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_DEVICE_RUNTIME_H_
