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
#include "spillway/types.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"
#include "tools/trainer/compute/gpu/cublaslt_products_cuda.h"
#include "tools/trainer/compute/gpu/device.h"

namespace spillway::trainer::gpu {

class CudaDevice final : public Device {
 public:
  // Allocates the workspace of products on GPU `index`, and opens the library. ResourceExhausted:
  // no room. OpenCudaDevice (cuda_device.h) checks first that there is such a GPU.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index,
                                                            const CublasLtLibrary& library);
  ~CudaDevice() override;

  spillway::Device tier() const override { return spillway::Device::Cuda(index_); }
  ComputedBy computed_by() const override;
  absl::StatusOr<uint64_t> FreeBytes() override;
  DeviceRates MeasureRates(DType operands) override;
  void Use(std::unique_ptr<Stream> stream) override { stream_ = std::move(stream); }
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
  absl::Status Synchronize() override;
  int64_t waits() const override { return waits_; }

 private:
  CudaDevice(int index, const CublasLtLibrary& library) : index_(index), library_(library) {}

  template <class Kernel>
  absl::Status Run(const char* name, const Kernel& kernel);
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_->native_handle()); }

  const int index_;
  const CublasLtLibrary library_;
  std::string name_;  // with its compute capability
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte*> memory_;
  std::vector<std::byte*> host_memory_;
  std::byte* workspace_ = nullptr;  // of products
  std::unique_ptr<CublasLtProducts> products_;
  int64_t waits_ = 0;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUDA_DEVICE_CUDA_H_
