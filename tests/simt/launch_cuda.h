// SPDX-License-Identifier: Apache-2.0
//
// Runs a kernel on the GPU for a test, in memory that host and GPU both read and write.

#ifndef SPILLWAY_TESTS_SIMT_LAUNCH_CUDA_H_
#define SPILLWAY_TESTS_SIMT_LAUNCH_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "src/optim/adamw_cuda.h"
#include "src/optim/adamw_of_run.h"
#include "tools/trainer/compute/gpu/launch_cuda.h"

namespace spillway::test {

inline bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Returns null if there is no room.
inline std::byte* TakeManaged(size_t bytes) {
  void* taken = nullptr;
  cudaMallocManaged(&taken, bytes, cudaMemAttachGlobal);
  return static_cast<std::byte*>(taken);
}
inline void GiveBack(std::byte* taken) { cudaFree(taken); }

// Returns what went wrong, or nothing.
template <class Kernel>
std::string LaunchAndWait(const Kernel& kernel) {
  cudaError_t error = Launch(kernel, nullptr);  // of the kernel's namespace
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

// Finds the tables on the GPU. Returns what went wrong, or nothing.
inline std::string FindTables(optim::CodeTables* tables) {
  const cudaError_t error = optim::FindCodeTables(tables->values);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SIMT_LAUNCH_CUDA_H_
