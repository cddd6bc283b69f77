// SPDX-License-Identifier: Apache-2.0
//
// A device's kind, to the runtime that drives it.

#include "tiers/make_device_runtime.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tiers/host_runtime.h"

namespace spillway::tiers {

absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(Device device) {
  switch (device.kind()) {
    case Device::Kind::kHost: return CreateHostRuntime();
    case Device::Kind::kCuda:
      return absl::FailedPreconditionError(absl::StrCat(
          "CUDA device ", device.index(),
          " was asked for, but this build of Spillway has no CUDA runtime; use the host device"));
  }
  return absl::InvalidArgumentError("unknown kind of device");
}

}  // namespace spillway::tiers
