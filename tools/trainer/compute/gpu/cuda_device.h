// SPDX-License-Identifier: Apache-2.0
//
// Opens a GPU for code that does not include CUDA's headers. Builds with CUDA define it.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/trainer/compute/gpu/device.h"

namespace spillway::trainer::gpu {

// Opens GPU `index`, and the cuBLASLt of a file (CublasLtLibrary::Load). Unimplemented: there is no
// driver, no such GPU, its compute capability is below 8.0, or there is no library. The GPU is
// looked at first. ResourceExhausted: the GPU has no room for the workspace of products.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index, const std::string& cublaslt_file);

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_H_
