// SPDX-License-Identifier: Apache-2.0
//
// CUDA's events and streams. A notification is an event that the stream's own thread waits for. A
// closure in the stream (cudaLaunchHostFunc) would delay the stream while it runs. CUDA would also
// not call it on a lost device, and the caller would wait for ever.

#ifndef SPILLWAY_TIERS_CUDA_STREAM_CUDA_H_
#define SPILLWAY_TIERS_CUDA_STREAM_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "tiers/cuda_device_cuda.h"
#include "tiers/device_runtime.h"

namespace spillway::tiers {

// A CUDA event. It is freed when its last user drops it.
class CudaEvent {
 public:
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Make(DeviceHealth& health, int device);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(int device) : device_(device) {}

  const int device_;
  cudaEvent_t event_ = nullptr;
};

// A stream and the thread that delivers its notifications. Thread-safe. Destruction waits for the
// notifications and closures, and for all work of a stream that Make created.
class CudaStream {
 public:
  static absl::StatusOr<std::shared_ptr<CudaStream>> Make(DeviceHealth* health, int device);
  // Wraps a stream that the caller owns, which must outlive this object.
  static absl::StatusOr<std::shared_ptr<CudaStream>> Wrap(DeviceHealth* health, int device,
                                                          cudaStream_t stream);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

  // FailedPrecondition if the stream is being captured into a graph: what is launched does not run,
  // and a wait would end the capture with an error.
  absl::Status CheckNotCaptured() const;
  absl::Status Launch(std::function<void()> work);
  absl::Status Notify(Notification notification);
  // Waits for all work and notifications that were enqueued before the call.
  absl::Status Synchronize();

 private:
  // Counts the closures of a stream. They share it, because CUDA may call one late on a lost
  // device, when the stream is gone.
  struct Closures {
    base::Mutex mutex;  // never held during a call to CUDA: CUDA's threads take it
    base::CondVar ended;
    uint64_t num_launched ABSL_GUARDED_BY(mutex) = 0;  // launched, not ended
    uint64_t num_running ABSL_GUARDED_BY(mutex) = 0;
    bool is_closed ABSL_GUARDED_BY(mutex) = false;  // no other closure may begin
  };
  struct Closure {
    std::shared_ptr<Closures> closures;
    std::function<void()> work;
  };
  struct Waiting {
    std::shared_ptr<CudaEvent> event;
    Notification notification;
  };

  CudaStream(DeviceHealth* health, int device) : health_(health), device_(device) {}

  absl::Status Start();
  static void CUDART_CB RunClosure(void* argument);
  bool HasClosures();
  // Waits for the closure that is running, and lets no other begin.
  void CloseClosures();
  // Waits for the next notification to deliver. Returns false if the stream is being destroyed and
  // none is left.
  bool Next(Waiting* next);
  void Run();

  DeviceHealth* const health_;
  const int device_;
  cudaStream_t stream_ = nullptr;
  bool is_own_ = false;

  base::Mutex mutex_;
  base::CondVar added_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  base::CondVar told_;
  uint64_t num_asked_ ABSL_GUARDED_BY(mutex_) = 0;  // notifications requested
  uint64_t num_told_ ABSL_GUARDED_BY(mutex_) = 0;   // notifications delivered
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  const std::shared_ptr<Closures> closures_ = std::make_shared<Closures>();

  std::thread thread_;
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_STREAM_CUDA_H_
