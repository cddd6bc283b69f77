// SPDX-License-Identifier: Apache-2.0
//
// Opens a GPU that computes. The command links open_gpu.cc, and the tests' emulated command an
// emulated GPU instead (tests/spillway/emulated_gpu.cc).

#ifndef SPILLWAY_TOOLS_SPILLWAY_GPU_OPEN_GPU_H_
#define SPILLWAY_TOOLS_SPILLWAY_GPU_OPEN_GPU_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/trainer/compute/gpu/device.h"

namespace spillway::command {

// Opens GPU `index` with the cuBLASLt of `cublaslt_file`, or if that is empty the first that is
// found (CublasLtLibrary::Load). Unimplemented says what is missing: CUDA in this build, a driver,
// such a GPU, compute capability 8.0, the library.
absl::StatusOr<std::unique_ptr<trainer::gpu::Device>> OpenGpu(int index,
                                                              const std::string& cublaslt_file);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_GPU_OPEN_GPU_H_
