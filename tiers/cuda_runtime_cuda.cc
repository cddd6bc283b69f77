// SPDX-License-Identifier: Apache-2.0
//
// Streams and events are CUDA's own; what is added:
// - Handles are numbers that are looked up, so that a destroyed one is never a live one's.
// - Calls come from any thread, so each makes the device current for its time and then restores
//   what the caller had.
// - A notification is an event that a thread of the stream waits for. A closure in the stream
//   (cudaLaunchHostFunc) would hold the stream up for the closure's time, and CUDA would not call
//   it on a lost device: its waiter would wait for ever.
// - The first error that means a lost device is kept, and is the answer from then on.

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <deque>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "tiers/cuda_runtime.h"
#include "tiers/cuda_status_cuda.h"

namespace spillway::tiers {
namespace {

constexpr uint64_t kArenaAlignmentBytes = uint64_t{2} << 20;
constexpr uint64_t kKernelShare = 16;  // one part of so many stays free for kernels

// Makes a device current for the calling thread, and the one before again when it ends.
class DeviceScope {
 public:
  explicit DeviceScope(int index) : index_(index) {
    status_ = cudaGetDevice(&before_);
    if (status_ == cudaSuccess && before_ != index_) status_ = cudaSetDevice(index_);
  }
  ~DeviceScope() {
    if (status_ == cudaSuccess && before_ != index_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  cudaError_t status() const { return status_; }

 private:
  const int index_;
  int before_ = 0;
  cudaError_t status_ = cudaSuccess;
};

// A range in the timeline of NVIDIA's tools, which put what is enqueued within it under its name.
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

// What becomes of one device. Thread-safe.
class DeviceHealth {
 public:
  // The error as a status; from the first lost device on, that one whatever `error` is. CUDA's own
  // note of a failed call (cudaGetLastError) is cleared, lest a caller's launch be taken for it.
  absl::Status Judge(cudaError_t error, std::string_view what) {
    if (error == cudaSuccess) return absl::OkStatus();
    (void)cudaGetLastError();
    const absl::Status status = CudaToStatus(error, what);
    base::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    if (IsLostDevice(error)) lost_ = status;
    return status;
  }
  absl::Status lost() {
    base::MutexLock lock(&mutex_);
    return lost_;
  }

 private:
  base::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

class CudaEvent {
 public:
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Make(DeviceHealth& health, int device) {
    auto event = std::shared_ptr<CudaEvent>(new CudaEvent(device));
    const DeviceScope scope(device);
    cudaError_t error = scope.status();
    // A thread that waits sleeps: spinning would take a processor from the optimizer.
    if (error == cudaSuccess) {
      error =
          cudaEventCreateWithFlags(&event->event_, cudaEventDisableTiming | cudaEventBlockingSync);
    }
    SPILLWAY_RETURN_IF_ERROR(health.Judge(error, "making an event"));
    return event;
  }
  // CUDA frees an event that is still to happen when it has happened.
  ~CudaEvent() {
    if (event_ == nullptr) return;
    const DeviceScope scope(device_);
    if (cudaEventDestroy(event_) != cudaSuccess) (void)cudaGetLastError();
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(int device) : device_(device) {}
  const int device_;
  cudaEvent_t event_ = nullptr;
};

// A stream and the thread that tells when its work has ended. Thread-safe. Destruction waits for
// the work and for the notifications.
class CudaStream {
 public:
  static absl::StatusOr<std::shared_ptr<CudaStream>> Make(DeviceHealth* health, int device) {
    auto stream = std::shared_ptr<CudaStream>(new CudaStream(health, device));
    const DeviceScope scope(device);
    cudaError_t error = scope.status();
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking);
    }
    SPILLWAY_RETURN_IF_ERROR(health->Judge(error, "making a stream"));
    try {
      stream->thread_ = std::thread(&CudaStream::Run, stream.get());
    } catch (const std::system_error& failure) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for a stream: ", failure.what()));
    }
    return stream;
  }

  ~CudaStream() {
    if (thread_.joinable()) {
      {
        base::MutexLock lock(&mutex_);
        stopping_ = true;
        added_.NotifyOne();
      }
      thread_.join();
    }
    if (stream_ == nullptr) return;
    const DeviceScope scope(device_);
    (void)health_->Judge(cudaStreamSynchronize(stream_), "ending a stream");
    (void)health_->Judge(cudaStreamDestroy(stream_), "ending a stream");
    // On a lost device CUDA never called these; otherwise each has run by now.
    for (Closure* left : closures_) delete left;
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

  absl::Status Notify(Notification notification) {
    SPILLWAY_ASSIGN_OR_RETURN(std::shared_ptr<CudaEvent> event, CudaEvent::Make(*health_, device_));
    const DeviceScope scope(device_);
    base::MutexLock lock(&mutex_);  // events in the order of their places in the stream
    const cudaError_t error =
        scope.status() != cudaSuccess ? scope.status() : cudaEventRecord(event->get(), stream_);
    SPILLWAY_RETURN_IF_ERROR(health_->Judge(error, "marking a stream"));
    waiting_.push_back({std::move(event), std::move(notification)});
    ++num_asked_;
    added_.NotifyOne();
    return absl::OkStatus();
  }

  absl::Status Synchronize() {
    const DeviceScope scope(device_);
    const cudaError_t error =
        scope.status() != cudaSuccess ? scope.status() : cudaStreamSynchronize(stream_);
    const absl::Status status = health_->Judge(error, "waiting for a stream");
    base::MutexLock lock(&mutex_);
    for (const uint64_t asked = num_asked_; num_told_ < asked;) told_.Wait(&mutex_);
    return status;
  }

  absl::Status Launch(std::function<void()> work) {
    auto* closure = new Closure{this, std::move(work)};
    {
      base::MutexLock lock(&closures_mutex_);
      closures_.push_back(closure);
    }
    const DeviceScope scope(device_);
    cudaError_t error = scope.status();
    if (error == cudaSuccess) error = cudaLaunchHostFunc(stream_, &CudaStream::RunClosure, closure);
    if (error != cudaSuccess) Forget(closure);
    return health_->Judge(error, "launching a closure");
  }

 private:
  struct Closure {
    CudaStream* stream;
    std::function<void()> work;
  };
  struct Waiting {
    std::shared_ptr<CudaEvent> event;
    Notification notification;
  };

  CudaStream(DeviceHealth* health, int device) : health_(health), device_(device) {}

  static void CUDART_CB RunClosure(void* argument) {
    auto* closure = static_cast<Closure*>(argument);
    closure->work();
    closure->stream->Forget(closure);
  }

  void Forget(Closure* closure) {
    {
      base::MutexLock lock(&closures_mutex_);
      closures_.erase(std::find(closures_.begin(), closures_.end(), closure));
    }
    delete closure;
  }

  // False when there will be none.
  bool Next(Waiting* next) {
    base::MutexLock lock(&mutex_);
    while (waiting_.empty() && !stopping_) added_.Wait(&mutex_);
    if (waiting_.empty()) return false;
    *next = std::move(waiting_.front());
    waiting_.pop_front();
    return true;
  }

  void Run() {
    const DeviceScope scope(device_);
    for (Waiting next; Next(&next);) {
      const cudaError_t error = cudaEventSynchronize(next.event->get());
      next.notification(health_->Judge(error, "waiting for a stream"));
      next = {};
      base::MutexLock lock(&mutex_);
      ++num_told_;
      told_.NotifyAll();
    }
  }

  DeviceHealth* const health_;
  const int device_;
  cudaStream_t stream_ = nullptr;

  base::Mutex mutex_;
  base::CondVar added_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  base::CondVar told_;
  uint64_t num_asked_ ABSL_GUARDED_BY(mutex_) = 0;  // notifications
  uint64_t num_told_ ABSL_GUARDED_BY(mutex_) = 0;   // of these
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  base::Mutex closures_mutex_;  // never held while CUDA is called: CUDA's threads take it
  std::deque<Closure*> closures_ ABSL_GUARDED_BY(closures_mutex_);  // launched, not ended

  std::thread thread_;
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
    // cudaMalloc promises 256 bytes and gives 2 MiB to whoever asks for that much; where it does
    // not, a little more is taken.
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
    return Call(
        absl::StrCat("registering ", base::FormatBytes(memory.size()),
                     " of pinned memory with CUDA"),
        [&] { return cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable); });
  }
  void UnregisterHostMemory(std::span<std::byte> memory) override {
    (void)Call("unregistering pinned memory", [&] { return cudaHostUnregister(memory.data()); });
  }

  absl::StatusOr<StreamHandle> CreateStream() override {
    SPILLWAY_ASSIGN_OR_RETURN(std::shared_ptr<CudaStream> stream,
                              CudaStream::Make(&health_, index_));
    base::MutexLock lock(&mutex_);
    const StreamHandle handle{NextHandle()};
    streams_.emplace(handle.value, std::move(stream));
    return handle;
  }

  void DestroyStream(StreamHandle stream) override {
    const std::shared_ptr<CudaStream> owned = Find(stream);  // ends outside the lock
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
    return Call(absl::StrCat("copying ", base::FormatBytes(size_bytes), ", ", name), [&] {
      return cudaMemcpyAsync(destination, source, size_bytes,
                             in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, target->get());
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
    const std::shared_ptr<CudaEvent> owned = Find(event);  // ends outside the lock
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
  // Runs one of CUDA's functions with this device current.
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

  mutable DeviceHealth health_;  // before the streams, which tell it how they end
  base::Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<CudaStream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<void*, std::shared_ptr<CudaEvent>> events_ ABSL_GUARDED_BY(mutex_);
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
  // Makes the context, so that what could not work says so here.
  const DeviceScope scope(index);
  SPILLWAY_RETURN_IF_ERROR(judge(scope.status()));
  SPILLWAY_RETURN_IF_ERROR(judge(cudaFree(nullptr)));
  return std::make_unique<CudaRuntime>(index, properties.name);
}

}  // namespace spillway::tiers
