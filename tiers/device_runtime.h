// SPDX-License-Identifier: Apache-2.0
//
// The seam between the engine and a device: memory, streams, events and copies, with CUDA's
// semantics. HostRuntime gives them on ordinary memory with threads, so that a machine without a
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

// Thread-safe. Handles that were never made, or were destroyed, are a programming error (CHECK).
//
// Semantics, as CUDA's: work on a stream runs in launch order; streams run concurrently; Record
// marks the work launched on the stream so far; an event that was never recorded counts as
// complete; recording again moves the mark, and a Wait already launched keeps the one it saw; Wait
// makes later work on the stream wait and does not block the caller.
//
// A device may be lost (a kernel's illegal access, a GPU that fell off its bus). Every call that
// needs it then returns Aborted, and what was in flight ends with that status: nothing waits for
// ever.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string name() const = 0;  // "host", or the GPU's name
  // Ok, or Aborted if the device is known to be lost: nothing may be committed any more.
  virtual absl::Status Check() const = 0;
  // The most that an arena should take now: the host's memory; of a GPU's, what is free less a
  // share for kernels.
  virtual uint64_t usable_bytes() const = 0;

  // One range of device memory, aligned to 2 MiB. The host commits memory on first touch.
  // ResourceExhausted names what was asked and what there is.
  virtual absl::StatusOr<std::byte*> AllocateArena(uint64_t size_bytes) = 0;
  virtual void FreeArena(std::byte* arena, uint64_t size_bytes) = 0;

  // Makes host memory known to the device for asynchronous copies (cudaHostRegister), range by
  // range; unregister the same ranges before the memory goes. No-op on the host.
  virtual absl::Status RegisterHostMemory(std::span<std::byte> memory) = 0;
  virtual void UnregisterHostMemory(std::span<std::byte> memory) = 0;

  virtual absl::StatusOr<StreamHandle> CreateStream() = 0;
  // A stream of the caller's own (cudaStream_t), which must outlive the handle. InvalidArgument:
  // the device has no streams but those that it made.
  virtual absl::StatusOr<StreamHandle> WrapStream(void* native) = 0;
  // Waits for its notifications and closures, and for all its work unless it is the caller's own.
  virtual void DestroyStream(StreamHandle stream) = 0;
  // Runs a closure on the host in stream order: what is launched later waits for it. It must not
  // call the runtime, nor wait for another stream's closure: a GPU may run them one at a time. On a
  // lost device it does not run.
  virtual absl::Status Launch(StreamHandle stream, std::function<void()> work) = 0;
  // Tells, on a thread of the runtime, that what was launched on the stream so far has ended:
  // exactly once if Notify returned ok, with ok or with what became of the device. What is launched
  // later need not wait for it, so that a GPU goes on meanwhile. It must not call the runtime.
  virtual absl::Status Notify(StreamHandle stream, Notification notification) = 0;
  // The host's side is registered memory.
  virtual absl::Status CopyAsync(StreamHandle stream, CopyDirection direction, void* destination,
                                 const void* source, uint64_t size_bytes) = 0;
  // Returns once what was launched so far has ended and its notifications have been given.
  virtual absl::Status Synchronize(StreamHandle stream) = 0;
  virtual void* native_handle(StreamHandle stream) = 0;

  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual void DestroyEvent(EventHandle event) = 0;
  virtual absl::Status Record(EventHandle event, StreamHandle stream) = 0;
  virtual absl::Status Wait(StreamHandle stream, EventHandle event) = 0;
  virtual absl::StatusOr<bool> Query(EventHandle event) = 0;
  virtual absl::Status Synchronize(EventHandle event) = 0;
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_DEVICE_RUNTIME_H_
