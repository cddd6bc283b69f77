// SPDX-License-Identifier: Apache-2.0

#include "src/simt/gpu_block.cuh"
#include "tools/trainer/compute/gpu/kernels.h"
#include "tools/trainer/compute/gpu/launch_cuda.h"

namespace spillway::trainer::gpu {

template <class Kernel>
cudaError_t Launch(const Kernel& kernel, cudaStream_t stream) {
  return simt::Launch(kernel, stream);
}

#define SPILLWAY_INSTANTIATE(kernel) template cudaError_t Launch(const kernel&, cudaStream_t);
SPILLWAY_TRAINER_KERNELS(SPILLWAY_INSTANTIATE)

}  // namespace spillway::trainer::gpu
