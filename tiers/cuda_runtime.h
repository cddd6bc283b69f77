// SPDX-License-Identifier: Apache-2.0
//
// The DeviceRuntime for a GPU, on CUDA's runtime. It is only in builds with CUDA (SPILLWAY_CUDA).
// This header includes none of CUDA's headers.

#ifndef SPILLWAY_TIERS_CUDA_RUNTIME_H_
#define SPILLWAY_TIERS_CUDA_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tiers/device_runtime.h"

namespace spillway::tiers {

// Creates the runtime for the GPU with that index, as CUDA counts them (CUDA_VISIBLE_DEVICES).
// NotFound, with advice, if there is no driver, the driver is too old, or there is no such GPU.
// Destruction waits for the work of streams that were not destroyed.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(int index);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_RUNTIME_H_
