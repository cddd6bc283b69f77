// SPDX-License-Identifier: Apache-2.0

#include "tiers/cuda_device_cuda.h"

#include <cuda.h>

#include <unordered_map>

#include "tiers/cuda_status_cuda.h"

namespace spillway::tiers {
namespace {

// The driver's functions. They are fetched through the runtime, because libcuda.so.1, which has
// them, is only on machines with a driver.
struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  cudaError_t error = cudaSuccess;  // why a function is missing

  Driver() {
    Fetch("cuDeviceGet", &device_get);
    Fetch("cuDevicePrimaryCtxRetain", &retain);
    Fetch("cuCtxPushCurrent", &push);
    Fetch("cuCtxPopCurrent", &pop);
  }

 private:
  template <typename F>
  void Fetch(const char* name, F* function) {
    [[maybe_unused]] constexpr unsigned kVersion = 12000;  // whose signatures these are
    void* address = nullptr;
    auto result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t failed =
        cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &result);
#else  // fetches the function of the runtime's own version, which has the same signature
    const cudaError_t failed = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result);
#endif
    if (failed != cudaSuccess) {
      error = failed;
    } else if (result != cudaDriverEntryPointSuccess) {
      error = cudaErrorSymbolNotFound;
    }
    *function = reinterpret_cast<F>(address);
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

// The driver's errors have the numbers of the runtime's since CUDA 10.1.
cudaError_t ToRuntimeError(CUresult result) { return static_cast<cudaError_t>(result); }

// Outputs the primary context of a device, the one that the runtime uses. It is created if there is
// none yet, and retained until the process ends.
cudaError_t PrimaryContext(int index, CUcontext* context) {
  static auto& mutex = *new base::Mutex;  // never destroyed: a thread may end after main
  static auto& contexts = *new std::unordered_map<int, CUcontext>;
  base::MutexLock lock(&mutex);
  if (const auto known = contexts.find(index); known != contexts.end()) {
    *context = known->second;
    return cudaSuccess;
  }
  CUdevice device = 0;
  CUresult result = TheDriver().device_get(&device, index);
  if (result == CUDA_SUCCESS) result = TheDriver().retain(context, device);
  if (result == CUDA_SUCCESS) contexts.emplace(index, *context);
  return ToRuntimeError(result);
}

cudaError_t PushPrimaryContext(int index) {
  cudaError_t error = TheDriver().error;
  CUcontext context = nullptr;
  if (error == cudaSuccess) error = PrimaryContext(index, &context);
  if (error == cudaSuccess) error = ToRuntimeError(TheDriver().push(context));
  return error;
}

}  // namespace

DeviceScope::DeviceScope(int index) {
  int current = 0;
  status_ = cudaGetDevice(&current);
  if (status_ == cudaSuccess && current != index) {
    status_ = PushPrimaryContext(index);
    is_pushed_ = status_ == cudaSuccess;
  }
  if (status_ == cudaSuccess) status_ = cudaThreadExchangeStreamCaptureMode(&capture_mode_);
}

DeviceScope::~DeviceScope() {
  if (status_ == cudaSuccess) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  CUcontext context = nullptr;
  if (is_pushed_) (void)TheDriver().pop(&context);
}

absl::Status DeviceHealth::Judge(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const absl::Status status = CudaToStatus(error, what);
  base::MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  if (IsLostDevice(error)) lost_ = status;
  return status;
}

absl::Status DeviceHealth::lost() {
  base::MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace spillway::tiers
