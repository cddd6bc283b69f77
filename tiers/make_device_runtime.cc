// SPDX-License-Identifier: Apache-2.0
//
// Maps a device's kind to the runtime that drives it. The build defines SPILLWAY_HAS_CUDA.

#include "tiers/make_device_runtime.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tiers/cuda_runtime.h"
#include "tiers/host_runtime.h"

namespace spillway::tiers {

bool HasCuda() { return SPILLWAY_HAS_CUDA != 0; }

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(Device device) {
  switch (device.kind()) {
    case Device::Kind::kHost: return CreateHostRuntime();
    case Device::Kind::kCuda:
#if SPILLWAY_HAS_CUDA
      return CreateCudaRuntime(device.index());
#else
      return absl::UnimplementedError(absl::StrCat(
          "CUDA device ", device.index(),
          ": this build of Spillway has no CUDA runtime; use the host device, or build it where "
          "nvcc is (SPILLWAY_CUDA=ON)"));
#endif
  }
  return absl::InvalidArgumentError("unknown kind of device");
}

}  // namespace spillway::tiers
