// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>

#include "tests/engine/synthetic_kernels_cuda.h"

namespace spillway::test {
namespace {

constexpr unsigned kThreads = 256;
constexpr uint64_t kMostBlocks = 512;

__device__ uint64_t NowNanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void TileKernel(TileWork work, unsigned long long* wrong_bytes) {
  const uint64_t end = NowNanoseconds() + uint64_t{work.microseconds} * 1000;
  while (NowNanoseconds() < end) {
  }
  unsigned long long wrong = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t at = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < work.size_bytes;
       at += stride) {
    if (work.check && work.data[at] != PatternByte(work.expected, at)) ++wrong;
    if (work.write) work.data[at] = PatternByte(work.next, at);
  }
  if (wrong > 0) atomicAdd(wrong_bytes, wrong);
}

}  // namespace

cudaError_t LaunchTileKernel(cudaStream_t stream, const TileWork& work,
                             unsigned long long* wrong_bytes) {
  const uint64_t needed = (work.size_bytes + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks);
  TileKernel<<<blocks, kThreads, 0, stream>>>(work, wrong_bytes);
  return cudaGetLastError();
}

}  // namespace spillway::test
