// SPDX-License-Identifier: Apache-2.0
//
// Converts CUDA's errors to statuses.

#ifndef SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_
#define SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace spillway::tiers {

// Ok for cudaSuccess. NotFound: there is no driver, it is too old or not usable, or there is no
// GPU; the message says what to do. ResourceExhausted: out of memory. Aborted: the device is lost
// and this process cannot use it any more. Internal: all other errors. `what` names the operation:
// "copying 16.0 MiB to the device".
absl::Status CudaToStatus(cudaError_t error, std::string_view what);

// Whether an error lasts for the life of the process: every later call returns it too.
bool IsLostDevice(cudaError_t error);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_
