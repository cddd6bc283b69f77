// SPDX-License-Identifier: Apache-2.0
//
// A device as its callers find it: made current for the time of a call, and judged by what calls
// returned. Calls come from any thread, so each restores what the caller had. The first error that
// means a lost device is kept, and is the answer from then on.

#ifndef SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_
#define SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "src/base/mutex.h"

namespace spillway::tiers {

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

// What becomes of one device. Thread-safe.
class DeviceHealth {
 public:
  // The error as a status; from the first lost device on, that one whatever `error` is. CUDA's own
  // note of a failed call (cudaGetLastError) is cleared, lest a caller's launch be taken for it.
  absl::Status Judge(cudaError_t error, std::string_view what);
  absl::Status lost();

 private:
  base::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_DEVICE_CUDA_H_
