// SPDX-License-Identifier: Apache-2.0
//
// The state of a device around calls to CUDA. DeviceScope makes the device current for the duration
// of a call. Calls come from any thread, so the caller's device is current again afterwards.
// DeviceHealth records the first error that means a lost device, and returns it from then on.

#ifndef SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_
#define SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "src/base/mutex.h"
#include "tiers/cuda_status_cuda.h"

namespace spillway::tiers {

// Makes a device current for the calling thread, and the previous one on destruction. It pushes the
// device's primary context on the thread's stack of contexts, and pops it. cudaSetDevice would not
// do: since CUDA 12 it creates the context of its device (some 500 MiB of GPU memory), so to go
// back to device 0 on a thread that has never set a device would create one on GPU 0.
//
// Meanwhile a graph that another thread captures does not forbid this thread calls such as
// cudaEventSynchronize, as it does by default (cudaStreamCaptureModeGlobal). Such a graph is none
// of the engine's: the engine refuses streams that are captured.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_ = cudaSuccess;
  bool is_pushed_ = false;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // then the thread's own
};

// Records whether one device is lost. Thread-safe.
class DeviceHealth {
 public:
  // Converts `error` to a status. Once an error meant a lost device, returns that error's status
  // for every later error. Clears CUDA's record of the failed call (cudaGetLastError), so that a
  // caller does not take it for an error of its own launch.
  absl::Status Judge(cudaError_t error, std::string_view what);
  absl::Status lost();

 private:
  base::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

// Calls CUDA on a GPU. A failed call leaves no record that a later one would find.
template <class Call>
absl::Status OnGpu(int index, std::string_view what, const Call& call) {
  const DeviceScope scope(index);
  cudaError_t error = scope.status();
  if (error == cudaSuccess) error = call();
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return CudaToStatus(error, what);
}

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_
