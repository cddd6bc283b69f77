// SPDX-License-Identifier: Apache-2.0
//
// From CUDA's errors to statuses.

#ifndef SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_
#define SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace spillway::tiers {

// Ok for cudaSuccess. NotFound: no driver, none new enough, or no GPU; the cure is named.
// ResourceExhausted: memory. Aborted: the device is lost and this process cannot use it any more.
// Internal: the rest. `what` says what was under way: "copying 16.0 MiB to the device".
absl::Status CudaToStatus(cudaError_t error, std::string_view what);

// Whether an error stays for the life of the process: every later call returns it too.
bool IsLostDevice(cudaError_t error);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_STATUS_CUDA_H_
