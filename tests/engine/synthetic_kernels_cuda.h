// SPDX-License-Identifier: Apache-2.0
//
// The function that the host part of the CUDA kernels calls in the part that nvcc compiles.

#ifndef SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_CUDA_H_
#define SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_CUDA_H_

#include <cuda_runtime_api.h>

#include "tests/engine/synthetic_pattern.h"

namespace spillway::test {

// Launches the work. It adds the number of bytes that did not match to `*wrong_bytes`, in device
// memory.
cudaError_t LaunchTileKernel(cudaStream_t stream, const TileWork& work,
                             unsigned long long* wrong_bytes);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_CUDA_H_
