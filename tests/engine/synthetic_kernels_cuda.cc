// SPDX-License-Identifier: Apache-2.0

#include "tests/engine/synthetic_kernels_cuda.h"

#include <memory>
#include <utility>

#include "src/base/status_macros.h"
#include "tests/engine/synthetic_kernels.h"
#include "tiers/cuda_status_cuda.h"

namespace spillway::test {
namespace {

using tiers::CudaToStatus;

// Only one thread uses it. Make sets that thread's current device and does not restore it.
class CudaKernels final : public SyntheticKernels {
 public:
  static absl::StatusOr<std::unique_ptr<SyntheticKernels>> Make(int index) {
    auto kernels = std::make_unique<CudaKernels>();
    SPILLWAY_RETURN_IF_ERROR(CudaToStatus(cudaSetDevice(index), "taking the device"));
    void* memory = nullptr;
    SPILLWAY_RETURN_IF_ERROR(
        CudaToStatus(cudaMalloc(&memory, sizeof(unsigned long long)), "allocating a counter"));
    kernels->wrong_bytes_ = static_cast<unsigned long long*>(memory);
    SPILLWAY_RETURN_IF_ERROR(
        CudaToStatus(cudaMemset(memory, 0, sizeof(unsigned long long)), "clearing a counter"));
    return kernels;
  }
  CudaKernels() = default;
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;
  ~CudaKernels() override { (void)cudaFree(wrong_bytes_); }

  absl::Status Launch(Stream& stream, const TileWork& work) override {
    return CudaToStatus(
        LaunchTileKernel(static_cast<cudaStream_t>(stream.native_handle()), work, wrong_bytes_),
        "launching a kernel");
  }
  absl::StatusOr<uint64_t> WrongBytes() override {
    unsigned long long wrong_bytes = 0;
    SPILLWAY_RETURN_IF_ERROR(CudaToStatus(
        cudaMemcpy(&wrong_bytes, wrong_bytes_, sizeof(wrong_bytes), cudaMemcpyDeviceToHost),
        "reading a counter"));
    return wrong_bytes;
  }

 private:
  unsigned long long* wrong_bytes_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SyntheticKernels>> MakeCudaKernels(int index) {
  return CudaKernels::Make(index);
}

}  // namespace spillway::test
