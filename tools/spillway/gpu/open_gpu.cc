// SPDX-License-Identifier: Apache-2.0
//
// The build defines SPILLWAY_HAS_CUDA.

#include "tools/spillway/gpu/open_gpu.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#if SPILLWAY_HAS_CUDA
#include "tools/trainer/compute/gpu/cuda_device.h"
#endif

namespace spillway::command {

absl::StatusOr<std::unique_ptr<trainer::gpu::Device>> OpenGpu(int index,
                                                              const std::string& cublaslt_file) {
#if SPILLWAY_HAS_CUDA
  return trainer::gpu::OpenCudaDevice(index, cublaslt_file);
#else
  (void)cublaslt_file;
  return absl::UnimplementedError(absl::StrCat("this build of Spillway has no kernels for GPU ",
                                               index,
                                               "; build it where nvcc is (SPILLWAY_CUDA=ON)"));
#endif
}

}  // namespace spillway::command
