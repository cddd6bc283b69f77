// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/cuda_device_cuda.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tiers/cuda_device_cuda.h"
#include "tiers/cuda_status_cuda.h"
#include "tools/trainer/compute/gpu/launch_cuda.h"

namespace spillway::trainer::gpu {
namespace {

// Calls CUDA on a GPU. A failed call leaves no record that a later one would find.
template <class Call>
absl::Status OnGpu(int index, std::string_view what, const Call& call) {
  const tiers::DeviceScope scope(index);
  cudaError_t error = scope.status();
  if (error == cudaSuccess) error = call();
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return tiers::CudaToStatus(error, what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index,
                                                               std::unique_ptr<Stream> stream,
                                                               const CublasLtLibrary& library) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(index, std::move(stream)));
  SPILLWAY_ASSIGN_OR_RETURN(std::byte* const workspace, device->Allocate(kProductWorkspaceBytes));
  const tiers::DeviceScope scope(index);
  SPILLWAY_RETURN_IF_ERROR(tiers::CudaToStatus(scope.status(), "using the GPU"));
  SPILLWAY_ASSIGN_OR_RETURN(device->products_, CublasLtProducts::Create(library, workspace));
  return device;
}

// After an error of Synchronize the work may still be running; CUDA waits for it before it frees
// memory.
CudaDevice::~CudaDevice() {
  (void)stream_->Synchronize();
  const tiers::DeviceScope scope(index_);
  products_.reset();
  for (std::byte* const memory : memory_) (void)cudaFree(memory);
  for (std::byte* const memory : host_memory_) (void)cudaFreeHost(memory);
  (void)cudaGetLastError();
}

absl::StatusOr<std::byte*> CudaDevice::Allocate(uint64_t size_bytes) {
  void* taken = nullptr;
  SPILLWAY_RETURN_IF_ERROR(
      OnGpu(index_, absl::StrCat("allocating ", size_bytes, " bytes of scratch on the device"),
            [&] { return cudaMalloc(&taken, size_bytes); }));
  memory_.push_back(static_cast<std::byte*>(taken));
  return memory_.back();
}

absl::StatusOr<std::byte*> CudaDevice::AllocateHost(uint64_t size_bytes) {
  void* taken = nullptr;
  SPILLWAY_RETURN_IF_ERROR(OnGpu(index_,
                                 absl::StrCat("allocating ", size_bytes, " bytes of pinned memory"),
                                 [&] { return cudaMallocHost(&taken, size_bytes); }));
  host_memory_.push_back(static_cast<std::byte*>(taken));
  return host_memory_.back();
}

absl::Status CudaDevice::CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) {
  return OnGpu(index_, absl::StrCat("copying ", size_bytes, " bytes to the device"), [&] {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, native());
  });
}

absl::Status CudaDevice::CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) {
  return OnGpu(index_, absl::StrCat("copying ", size_bytes, " bytes to the host"), [&] {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, native());
  });
}

template <class Kernel>
absl::Status CudaDevice::Run(const char* name, const Kernel& kernel) {
  return OnGpu(index_, absl::StrCat("launching kernel ", name),
               [&] { return gpu::Launch(kernel, native()); });
}

#define SPILLWAY_DEFINE_LAUNCH(kernel) \
  absl::Status CudaDevice::Launch(const kernel& arguments) { return Run(#kernel, arguments); }
SPILLWAY_TRAINER_KERNELS(SPILLWAY_DEFINE_LAUNCH)
#undef SPILLWAY_DEFINE_LAUNCH

absl::Status CudaDevice::Choose(const ProductCall& call) {
  const tiers::DeviceScope scope(index_);
  SPILLWAY_RETURN_IF_ERROR(tiers::CudaToStatus(scope.status(), "using the GPU"));
  return products_->Choose(call);
}

absl::Status CudaDevice::Multiply(const ProductCall& call, const void* a, const void* b, void* d) {
  SPILLWAY_RETURN_IF_ERROR(Choose(call));
  const tiers::DeviceScope scope(index_);
  SPILLWAY_RETURN_IF_ERROR(tiers::CudaToStatus(scope.status(), "using the GPU"));
  return products_->Run(call, a, b, d, native());
}

}  // namespace spillway::trainer::gpu
