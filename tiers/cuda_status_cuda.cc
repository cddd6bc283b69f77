// SPDX-License-Identifier: Apache-2.0

#include "tiers/cuda_status_cuda.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace spillway::tiers {
namespace {

// "13.0" from 13000.
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Describes what is wrong with the driver: CUDA reports the same error for a missing driver and for
// one that is too old.
std::string DescribeDriver() {
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  (void)cudaGetLastError();
  if (version == 0) {
    return "there is no NVIDIA driver (libcuda.so.1) here: install it, or in a container give it "
           "the GPU (docker run --gpus all); spillway doctor shows what is there";
  }
  return absl::StrCat("the NVIDIA driver supports CUDA ", VersionText(version),
                      ", this build needs ", VersionText(CUDART_VERSION), ": update the driver");
}

}  // namespace

bool IsLostDevice(cudaError_t error) {
  // A driver that is newer than the build's toolkit may report errors that the toolkit's headers do
  // not name. Errors that CUDA 12.0 does not name are therefore here by number.
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226:  // cudaErrorContained
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721:  // cudaErrorTensorMemoryLeak
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

absl::Status CudaToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string cause = absl::StrCat(std::string(what), ": ", cudaGetErrorName(error), " (",
                                         static_cast<int>(error), "), ", cudaGetErrorString(error));
  if (IsLostDevice(error)) {
    return absl::AbortedError(
        absl::StrCat("the GPU is lost: ", cause,
                     "; start the process again: the last commit is intact, and what came after "
                     "it is gone (dmesg and nvidia-smi may say why)"));
  }
  switch (error) {
    case cudaErrorInsufficientDriver:
      return absl::NotFoundError(absl::StrCat(std::string(what), ": ", DescribeDriver()));
    case cudaErrorNoDevice:
      return absl::NotFoundError(
          absl::StrCat(std::string(what),
                       ": the driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES"));
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorSystemNotReady:
      return absl::NotFoundError(
          absl::StrCat(cause, ": the driver is not usable; look at nvidia-smi and dmesg"));
    case cudaErrorMemoryAllocation: return absl::ResourceExhaustedError(cause);
    default: return absl::InternalError(cause);
  }
}

}  // namespace spillway::tiers
