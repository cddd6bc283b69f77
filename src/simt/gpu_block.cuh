// SPDX-License-Identifier: Apache-2.0
//
// The block of a GPU, and the launch of a kernel (block.h) on a stream. The sources that include
// this are compiled with -fmad=false, so that each operation is rounded once, as on the host.

#ifndef SPILLWAY_SIMT_GPU_BLOCK_CUH_
#define SPILLWAY_SIMT_GPU_BLOCK_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "src/simt/block.h"

namespace spillway::simt {

class GpuBlock {
 public:
  template <class T, int kSize>
  class Array {
   public:
    __device__ T Read(int64_t index) const { return values_[index]; }
    __device__ void Write(int64_t index, T value) { values_[index] = value; }

   private:
    T values_[kSize];
  };

  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int64_t index() const { return static_cast<int64_t>(blockIdx.x); }
  __device__ void Sync() { __syncthreads(); }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) RunOnGpu(const Kernel kernel) {
  __shared__ typename Kernel::template Shared<GpuBlock> shared;
  GpuBlock block;
  kernel.Run(block, shared);
}

// Launches a kernel. A grid of more than 2^31 - 1 blocks is cudaErrorInvalidValue.
template <class Kernel>
cudaError_t Launch(const Kernel& kernel, cudaStream_t stream) {
  const int64_t blocks = kernel.blocks();
  if (blocks == 0) return cudaSuccess;
  if (blocks < 0 || blocks > INT32_MAX) return cudaErrorInvalidValue;
  RunOnGpu<<<static_cast<unsigned>(blocks), Kernel::kThreads, 0, stream>>>(kernel);
  return cudaGetLastError();
}

}  // namespace spillway::simt

#endif  // SPILLWAY_SIMT_GPU_BLOCK_CUH_
