// SPDX-License-Identifier: Apache-2.0
//
// A GPU as a device, through CUDA's runtime. Only in builds with CUDA (SPILLWAY_CUDA); CUDA's own
// headers stay in cuda_runtime_cuda.cc.

#ifndef SPILLWAY_TIERS_CUDA_RUNTIME_H_
#define SPILLWAY_TIERS_CUDA_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tiers/device_runtime.h"

namespace spillway::tiers {

// The GPU of that index, as CUDA counts them (CUDA_VISIBLE_DEVICES). NotFound, saying what to do,
// where there is no driver, none new enough, or no such GPU. Destruction waits for the work of
// streams that are left.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime(int index);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_CUDA_RUNTIME_H_
