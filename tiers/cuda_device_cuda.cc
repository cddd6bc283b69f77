// SPDX-License-Identifier: Apache-2.0

#include "tiers/cuda_device_cuda.h"

#include "tiers/cuda_status_cuda.h"

namespace spillway::tiers {

absl::Status DeviceHealth::Judge(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const absl::Status status = CudaToStatus(error, what);
  base::MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  if (IsLostDevice(error)) lost_ = status;
  return status;
}

absl::Status DeviceHealth::lost() {
  base::MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace spillway::tiers
