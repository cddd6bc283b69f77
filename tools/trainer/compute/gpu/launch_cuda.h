// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LAUNCH_CUDA_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LAUNCH_CUDA_H_

#include <cuda_runtime_api.h>

namespace spillway::trainer::gpu {

// Launches one of the kernels of kernels.h on a stream. Defined for these alone.
template <class Kernel>
cudaError_t Launch(const Kernel& kernel, cudaStream_t stream);

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LAUNCH_CUDA_H_
