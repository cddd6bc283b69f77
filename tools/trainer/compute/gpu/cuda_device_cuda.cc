// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/cuda_device_cuda.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tiers/cuda_device_cuda.h"
#include "tiers/cuda_status_cuda.h"
#include "tools/trainer/compute/best_rate.h"
#include "tools/trainer/compute/gpu/cuda_device.h"
#include "tools/trainer/compute/gpu/launch_cuda.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {
namespace {

constexpr int kLeastCapability = 8;

absl::StatusOr<cudaDeviceProp> PropertiesOf(int index) {
  cudaDeviceProp properties;
  SPILLWAY_RETURN_IF_ERROR(tiers::OnGpu(index, "asking for the GPU's properties", [&] {
    return cudaGetDeviceProperties(&properties, index);
  }));
  return properties;
}

std::string NameOf(const cudaDeviceProp& gpu) {
  return absl::StrCat(gpu.name, ", compute capability ", gpu.major, ".", gpu.minor);
}

// Measures the best rate of `work`, which launches `operations` on a stream and returns whether it
// could; it has `size_bytes` of the current device. 0 if a call fails.
template <class Work>
double RateOf(double operations, uint64_t size_bytes, const Work& work) {
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool is_good = cudaMalloc(&memory, size_bytes) == cudaSuccess &&
                 cudaMemset(memory, 0, size_bytes) == cudaSuccess &&
                 cudaStreamCreate(&stream) == cudaSuccess &&
                 cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess;
  double rate = 0;
  if (is_good) {
    rate = BestRate(operations, [&] {
      float milliseconds = 0;
      is_good = is_good && cudaEventRecord(begin, stream) == cudaSuccess &&
                work(static_cast<std::byte*>(memory), stream) &&
                cudaEventRecord(end, stream) == cudaSuccess &&
                cudaEventSynchronize(end) == cudaSuccess &&
                cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess;
      return is_good ? milliseconds / 1e3 : 1.0;
    });
  }
  if (end != nullptr) (void)cudaEventDestroy(end);
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (stream != nullptr) (void)cudaStreamDestroy(stream);
  (void)cudaFree(memory);
  (void)cudaGetLastError();
  return is_good ? rate : 0;
}

// Of products of square matrices on the current device.
double SquareRate(const CublasLtLibrary& library, std::byte* workspace, DType operands) {
  constexpr int64_t kSide = 4096;
  constexpr int kRepeats = 8;
  constexpr uint64_t kMostBytes = uint64_t{kSide} * kSide * sizeof(float);
  const RowMajor matrix = {.view = {.stored = operands,
                                    .rounded = operands,
                                    .rows = kSide,
                                    .columns = kSide,
                                    .stride = kSide}};
  const auto call = CallOf({.a = matrix, .b = matrix, .d = matrix});
  const auto products = CublasLtProducts::Create(library, workspace);
  if (!call.ok() || !products.ok() || !(*products)->Choose(*call).ok()) return 0;
  return RateOf(2.0 * kSide * kSide * kSide * kRepeats, 3 * kMostBytes,
                [&](std::byte* memory, cudaStream_t stream) {
                  bool is_good = true;
                  for (int i = 0; i < kRepeats && is_good; ++i) {
                    is_good = (*products)
                                  ->Run(*call, memory, memory + kMostBytes, memory + 2 * kMostBytes,
                                        stream)
                                  .ok();
                  }
                  return is_good;
                });
}

// Of a copy within the current device's memory.
double CopyRate() {
  constexpr uint64_t kBytes = uint64_t{256} << 20;
  return RateOf(2.0 * kBytes, 2 * kBytes, [](std::byte* memory, cudaStream_t stream) {
    return cudaMemcpyAsync(memory + kBytes, memory, kBytes, cudaMemcpyDeviceToDevice, stream) ==
           cudaSuccess;
  });
}

constexpr uint64_t kLinkBytes = uint64_t{128} << 20;  // of a copy from or to pinned memory

// Unimplemented unless the GPU can compute.
absl::Status CheckGpu(int index) {
  int gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&gpus);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnimplementedError(
        absl::StrCat("this machine has no GPU that can be used: ", cudaGetErrorString(error)));
  }
  if (index >= gpus) {
    return absl::UnimplementedError(absl::StrCat("there is no such GPU: this machine has ", gpus));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const cudaDeviceProp gpu, PropertiesOf(index));
  if (gpu.major >= kLeastCapability) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(NameOf(gpu), " is too old: kernels are built for ",
                                               kLeastCapability, ".0 and newer"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index,
                                                       const std::string& cublaslt_file) {
  SPILLWAY_RETURN_IF_ERROR(CheckGpu(index));
  SPILLWAY_ASSIGN_OR_RETURN(const CublasLtLibrary library, CublasLtLibrary::Load(cublaslt_file));
  return CudaDevice::Create(index, library);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index,
                                                               const CublasLtLibrary& library) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(index, library));
  SPILLWAY_ASSIGN_OR_RETURN(const cudaDeviceProp gpu, PropertiesOf(index));
  device->name_ = NameOf(gpu);
  SPILLWAY_ASSIGN_OR_RETURN(device->workspace_, device->Allocate(kProductWorkspaceBytes));
  const tiers::DeviceScope scope(index);
  SPILLWAY_RETURN_IF_ERROR(tiers::CudaToStatus(scope.status(), "using the GPU"));
  SPILLWAY_ASSIGN_OR_RETURN(device->products_,
                            CublasLtProducts::Create(library, device->workspace_));
  return device;
}

// After an error of Synchronize the work may still be running; CUDA waits for it before it frees
// memory.
CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) (void)stream_->Synchronize();
  const tiers::DeviceScope scope(index_);
  products_.reset();
  for (std::byte* const memory : memory_) (void)cudaFree(memory);
  for (std::byte* const memory : host_memory_) (void)cudaFreeHost(memory);
  (void)cudaGetLastError();
}

ComputedBy CudaDevice::computed_by() const {
  return {.gpu = name_,
          .library = absl::StrCat("cuBLASLt ", library_.VersionName()),
          .algorithms = products_->Algorithms()};
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  SPILLWAY_RETURN_IF_ERROR(tiers::OnGpu(index_, "asking for the GPU's memory",
                                        [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); }));
  return free_bytes;
}

DeviceRates CudaDevice::MeasureRates(DType operands) {
  const tiers::DeviceScope scope(index_);
  if (scope.status() != cudaSuccess) return {};
  DeviceRates rates = {.flops = SquareRate(library_, workspace_, operands), .copy = CopyRate()};
  void* pinned = nullptr;
  if (cudaMallocHost(&pinned, kLinkBytes) == cudaSuccess) {
    rates.from_pinned = RateOf(kLinkBytes, kLinkBytes, [&](std::byte* memory, cudaStream_t stream) {
      return cudaMemcpyAsync(memory, pinned, kLinkBytes, cudaMemcpyHostToDevice, stream) ==
             cudaSuccess;
    });
    rates.to_pinned = RateOf(kLinkBytes, kLinkBytes, [&](std::byte* memory, cudaStream_t stream) {
      return cudaMemcpyAsync(pinned, memory, kLinkBytes, cudaMemcpyDeviceToHost, stream) ==
             cudaSuccess;
    });
    (void)cudaFreeHost(pinned);
  }
  (void)cudaGetLastError();
  return rates;
}

absl::Status CudaDevice::Synchronize() {
  ++waits_;
  return stream_->Synchronize();
}

absl::StatusOr<std::byte*> CudaDevice::Allocate(uint64_t size_bytes) {
  void* taken = nullptr;
  SPILLWAY_RETURN_IF_ERROR(tiers::OnGpu(
      index_, absl::StrCat("allocating ", size_bytes, " bytes of scratch on the device"),
      [&] { return cudaMalloc(&taken, size_bytes); }));
  memory_.push_back(static_cast<std::byte*>(taken));
  return memory_.back();
}

absl::StatusOr<std::byte*> CudaDevice::AllocateHost(uint64_t size_bytes) {
  void* taken = nullptr;
  SPILLWAY_RETURN_IF_ERROR(
      tiers::OnGpu(index_, absl::StrCat("allocating ", size_bytes, " bytes of pinned memory"),
                   [&] { return cudaMallocHost(&taken, size_bytes); }));
  host_memory_.push_back(static_cast<std::byte*>(taken));
  return host_memory_.back();
}

absl::Status CudaDevice::CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) {
  return tiers::OnGpu(index_, absl::StrCat("copying ", size_bytes, " bytes to the device"), [&] {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, native());
  });
}

absl::Status CudaDevice::CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) {
  return tiers::OnGpu(index_, absl::StrCat("copying ", size_bytes, " bytes to the host"), [&] {
    return cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, native());
  });
}

template <class Kernel>
absl::Status CudaDevice::Run(const char* name, const Kernel& kernel) {
  return tiers::OnGpu(index_, absl::StrCat("launching kernel ", name),
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
