// SPDX-License-Identifier: Apache-2.0
//
// Implements streams and events with CUDA's own. A handle is a number that is looked up, so that a
// destroyed handle never equals a live one.

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "tiers/cuda_device_cuda.h"
#include "tiers/cuda_runtime.h"
#include "tiers/cuda_status_cuda.h"
#include "tiers/cuda_stream_cuda.h"
#include "tiers/registered_ranges.h"

namespace spillway::tiers {
namespace {

constexpr uint64_t kArenaAlignmentBytes = uint64_t{2} << 20;
constexpr uint64_t kKernelShare = 16;  // 1 / kKernelShare of the free memory is left to kernels

// A range in the timeline of NVIDIA's tools. The tools show work that is enqueued within the range
// under its name.
class ProfilerRange {
 public:
  ProfilerRange(const char* name, uint64_t size_bytes) {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = size_bytes;
    (void)nvtxDomainRangePushEx(Domain(), &attributes);
  }
  ~ProfilerRange() { (void)nvtxDomainRangePop(Domain()); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  static nvtxDomainHandle_t Domain() {
    static const nvtxDomainHandle_t domain = nvtxDomainCreateA("spillway");
    return domain;
  }
};

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime(int index, std::string name) : index_(index), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  absl::Status Check() const override { return health_.lost(); }

  uint64_t usable_bytes() const override {
    const uint64_t free_bytes = Memory().free;
    return free_bytes - free_bytes / kKernelShare;
  }

  absl::StatusOr<std::byte*> AllocateArena(uint64_t size_bytes) override {
    if (size_bytes == 0) return absl::InvalidArgumentError("an arena of 0 bytes was asked for");
    // cudaMalloc guarantees an alignment of 256 bytes, but aligns large allocations to 2 MiB in
    // practice. If it does not, the arena is allocated again with 2 MiB more, and aligned here.
    SPILLWAY_ASSIGN_OR_RETURN(std::byte * start, Allocate(size_bytes, 0));
    if (reinterpret_cast<uintptr_t>(start) % kArenaAlignmentBytes != 0) {
      Free(start);
      SPILLWAY_ASSIGN_OR_RETURN(start, Allocate(size_bytes, kArenaAlignmentBytes));
    }
    const auto address = reinterpret_cast<uintptr_t>(start);
    std::byte* const arena = start + (base::RoundUp(address, kArenaAlignmentBytes) - address);
    base::MutexLock lock(&mutex_);
    arenas_.emplace(arena, start);
    return arena;
  }

  void FreeArena(std::byte* arena, uint64_t /*size_bytes*/) override {
    std::byte* start = nullptr;
    {
      base::MutexLock lock(&mutex_);
      const auto found = arenas_.find(arena);
      SPILLWAY_CHECK(found != arenas_.end());
      start = found->second;
      arenas_.erase(found);
    }
    Free(start);
  }

  absl::Status RegisterHostMemory(std::span<std::byte> memory) override {
    SPILLWAY_RETURN_IF_ERROR(Call(
        absl::StrCat("registering ", base::FormatBytes(memory.size()),
                     " of pinned memory with CUDA"),
        [&] { return cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable); }));
    registered_.Add(memory);
    return absl::OkStatus();
  }
  void UnregisterHostMemory(std::span<std::byte> memory) override {
    (void)Call("unregistering pinned memory", [&] { return cudaHostUnregister(memory.data()); });
    registered_.Remove(memory.data());
  }

  absl::StatusOr<StreamHandle> CreateStream() override {
    return Add(CudaStream::Make(&health_, index_));
  }

  absl::StatusOr<StreamHandle> WrapStream(void* native) override {
    auto* const stream = static_cast<cudaStream_t>(native);
    if (stream == cudaStreamPerThread) {
      return absl::InvalidArgumentError(
          "cudaStreamPerThread is a different stream in each thread: wrap one that "
          "cudaStreamCreate made, or the legacy default stream");
    }
    return Add(CudaStream::Wrap(&health_, index_, stream));
  }

  absl::Status CheckStream(StreamHandle stream) override {
    return Find(stream)->CheckNotCaptured();
  }

  void DestroyStream(StreamHandle stream) override {
    const std::shared_ptr<CudaStream> owned = Find(stream);  // destroyed outside the lock
    base::MutexLock lock(&mutex_);
    streams_.erase(stream.value);
  }

  absl::Status Launch(StreamHandle stream, std::function<void()> work) override {
    if (!work) return absl::InvalidArgumentError("an empty closure was launched");
    return Find(stream)->Launch(std::move(work));
  }

  absl::Status Notify(StreamHandle stream, Notification notification) override {
    if (!notification) return absl::InvalidArgumentError("an empty notification was asked for");
    return Find(stream)->Notify(std::move(notification));
  }

  absl::Status CopyAsync(StreamHandle stream, CopyDirection direction, void* destination,
                         const void* source, uint64_t size_bytes) override {
    const std::shared_ptr<CudaStream> target = Find(stream);
    if (size_bytes == 0) return absl::OkStatus();
    const bool in = direction == CopyDirection::kHostToDevice;
    const char* const name = in ? "pinned to device" : "device to pinned";
    const ProfilerRange range(name, size_bytes);
    auto* to = static_cast<std::byte*>(destination);
    const auto* from = static_cast<const std::byte*>(source);
    return Call(absl::StrCat("copying ", base::FormatBytes(size_bytes), ", ", name), [&] {
      cudaError_t error = cudaSuccess;
      for (uint64_t left = size_bytes; left > 0 && error == cudaSuccess;) {
        const uint64_t part = registered_.CopyBytes(in ? from : to, left);
        error = cudaMemcpyAsync(
            to, from, part, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, target->get());
        to += part;
        from += part;
        left -= part;
      }
      return error;
    });
  }

  absl::Status Synchronize(StreamHandle stream) override { return Find(stream)->Synchronize(); }

  void* native_handle(StreamHandle stream) override { return Find(stream)->get(); }

  absl::StatusOr<EventHandle> CreateEvent() override {
    SPILLWAY_ASSIGN_OR_RETURN(std::shared_ptr<CudaEvent> event, CudaEvent::Make(health_, index_));
    base::MutexLock lock(&mutex_);
    const EventHandle handle{NextHandle()};
    events_.emplace(handle.value, std::move(event));
    return handle;
  }

  void DestroyEvent(EventHandle event) override {
    const std::shared_ptr<CudaEvent> owned = Find(event);  // destroyed outside the lock
    base::MutexLock lock(&mutex_);
    events_.erase(event.value);
  }

  absl::Status Record(EventHandle event, StreamHandle stream) override {
    const std::shared_ptr<CudaEvent> mark = Find(event);
    const std::shared_ptr<CudaStream> target = Find(stream);
    return Call("recording an event", [&] { return cudaEventRecord(mark->get(), target->get()); });
  }

  absl::Status Wait(StreamHandle stream, EventHandle event) override {
    const std::shared_ptr<CudaStream> target = Find(stream);
    const std::shared_ptr<CudaEvent> mark = Find(event);
    SPILLWAY_RETURN_IF_ERROR(target->CheckNotCaptured());
    return Call("making a stream wait",
                [&] { return cudaStreamWaitEvent(target->get(), mark->get(), 0); });
  }

  absl::StatusOr<bool> Query(EventHandle event) override {
    const std::shared_ptr<CudaEvent> mark = Find(event);
    bool happened = true;
    SPILLWAY_RETURN_IF_ERROR(Call("asking for an event", [&] {
      const cudaError_t error = cudaEventQuery(mark->get());
      if (error != cudaErrorNotReady) return error;
      (void)cudaGetLastError();
      happened = false;
      return cudaSuccess;
    }));
    return happened;
  }

  absl::Status Synchronize(EventHandle event) override {
    const std::shared_ptr<CudaEvent> mark = Find(event);
    return Call("waiting for an event", [&] { return cudaEventSynchronize(mark->get()); });
  }

 private:
  absl::StatusOr<StreamHandle> Add(absl::StatusOr<std::shared_ptr<CudaStream>> stream) {
    SPILLWAY_RETURN_IF_ERROR(stream.status());
    base::MutexLock lock(&mutex_);
    const StreamHandle handle{NextHandle()};
    streams_.emplace(handle.value, *std::move(stream));
    return handle;
  }

  // Calls a CUDA function with this device current.
  template <typename F>
  absl::Status Call(std::string_view what, F&& function) const {
    const DeviceScope scope(index_);
    return health_.Judge(scope.status() != cudaSuccess ? scope.status() : function(), what);
  }

  struct MemoryBytes {
    size_t free = 0, total = 0;  // zeros on a lost device
  };
  MemoryBytes Memory() const {
    MemoryBytes memory;
    (void)Call("asking for the GPU's memory",
               [&] { return cudaMemGetInfo(&memory.free, &memory.total); });
    return memory;
  }

  absl::StatusOr<std::byte*> Allocate(uint64_t size_bytes, uint64_t spare_bytes) {
    const auto [free_bytes, total_bytes] = Memory();
    if (size_bytes <= total_bytes) {
      void* memory = nullptr;
      const absl::Status status =
          Call(absl::StrCat("allocating ", base::FormatBytes(size_bytes)),
               [&] { return cudaMalloc(&memory, size_bytes + spare_bytes); });
      if (status.ok()) return static_cast<std::byte*>(memory);
      if (!absl::IsResourceExhausted(status)) return status;
    }
    SPILLWAY_RETURN_IF_ERROR(Check());
    return absl::ResourceExhaustedError(absl::StrCat(
        "an arena of ", base::FormatBytes(size_bytes), " was asked for on GPU ", index_, " (",
        name_, "), which has ", base::FormatBytes(free_bytes), " free of ",
        base::FormatBytes(total_bytes), "; ask for less (device_bytes), or end what else uses it"));
  }

  void Free(std::byte* memory) {
    (void)Call("freeing an arena", [&] { return cudaFree(memory); });
  }

  void* NextHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reinterpret_cast<void*>(++last_handle_);
  }

  std::shared_ptr<CudaStream> Find(StreamHandle stream) {
    base::MutexLock lock(&mutex_);
    const auto found = streams_.find(stream.value);
    SPILLWAY_CHECK(found != streams_.end());
    return found->second;
  }

  std::shared_ptr<CudaEvent> Find(EventHandle event) {
    base::MutexLock lock(&mutex_);
    const auto found = events_.find(event.value);
    SPILLWAY_CHECK(found != events_.end());
    return found->second;
  }

  // Constant.
  const int index_;
  const std::string name_;

  mutable DeviceHealth health_;  // before the streams, whose destructors use it
  base::Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<CudaStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<void*, std::shared_ptr<CudaEvent>> events_ ABSL_GUARDED_BY(mutex_);
  RegisteredRanges registered_;
  std::unordered_map<std::byte*, std::byte*> arenas_ ABSL_GUARDED_BY(mutex_);  // to allocations
  uintptr_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(int index) {
  const std::string what = absl::StrCat("CUDA device ", index);
  int count = 0;
  const auto judge = [&](cudaError_t error) {
    if (error != cudaSuccess) (void)cudaGetLastError();
    return CudaToStatus(error, what);
  };
  SPILLWAY_RETURN_IF_ERROR(judge(cudaGetDeviceCount(&count)));
  if (index < 0 || index >= count) {
    return absl::NotFoundError(absl::StrCat(
        what, ": there is none; the driver sees ", count, count == 1 ? " GPU" : " GPUs",
        ", counted from 0; CUDA_VISIBLE_DEVICES may hide some"));
  }
  cudaDeviceProp properties = {};
  SPILLWAY_RETURN_IF_ERROR(judge(cudaGetDeviceProperties(&properties, index)));
  // Creates the context, so that a GPU that cannot be used is reported here.
  const DeviceScope scope(index);
  SPILLWAY_RETURN_IF_ERROR(judge(scope.status()));
  SPILLWAY_RETURN_IF_ERROR(judge(cudaFree(nullptr)));
  return std::make_unique<CudaRuntime>(index, properties.name);
}

}  // namespace spillway::tiers
