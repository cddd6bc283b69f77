// SPDX-License-Identifier: Apache-2.0
//
// A Device that is a GPU: kernels compiled by nvcc, and products of cuBLASLt, on a stream of the
// engine's CUDA device. Tests build it and drive its products through a fake library; no GPU has
// run it yet.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_CUDA_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"
#include "tools/trainer/compute/gpu/cublaslt_products_cuda.h"
#include "tools/trainer/compute/gpu/device.h"

namespace spillway::trainer::gpu {

class CudaDevice final : public Device {
 public:
  // `index`: of the GPU, on which the engine created `stream`. Allocates the workspace of products
  // and opens the library. NotFound: there is no driver or no such GPU. ResourceExhausted: no room.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index,
                                                            std::unique_ptr<Stream> stream,
                                                            const CublasLtLibrary& library);
  ~CudaDevice() override;

  Stream* stream() override { return stream_.get(); }
  absl::StatusOr<std::byte*> Allocate(uint64_t size_bytes) override;
  absl::StatusOr<std::byte*> AllocateHost(uint64_t size_bytes) override;
  absl::Status CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) override;
  absl::Status CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) override;

#define SPILLWAY_DEFINE_LAUNCH(kernel) absl::Status Launch(const kernel& arguments) override;
  SPILLWAY_TRAINER_KERNELS(SPILLWAY_DEFINE_LAUNCH)
#undef SPILLWAY_DEFINE_LAUNCH

  absl::Status Choose(const ProductCall& call) override;
  absl::Status Multiply(const ProductCall& call, const void* a, const void* b, void* d) override;
  absl::Status Synchronize() override { return stream_->Synchronize(); }

  // A line for each shape of a product (CublasLtProducts::Algorithms).
  std::vector<std::string> Algorithms() const { return products_->Algorithms(); }

 private:
  CudaDevice(int index, std::unique_ptr<Stream> stream)
      : index_(index), stream_(std::move(stream)) {}

  template <class Kernel>
  absl::Status Run(const char* name, const Kernel& kernel);
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_->native_handle()); }

  const int index_;
  const std::unique_ptr<Stream> stream_;
  std::vector<std::byte*> memory_;
  std::vector<std::byte*> host_memory_;
  std::unique_ptr<CublasLtProducts> products_;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_CUDA_H_
