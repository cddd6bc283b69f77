// SPDX-License-Identifier: Apache-2.0
//
// Decides when a test for a GPU may be skipped: if the machine has none. A build that lacks CUDA
// although nvcc is there is a mistake, so it is no reason to skip.

#ifndef SPILLWAY_TESTS_TIERS_NO_DEVICE_H_
#define SPILLWAY_TESTS_TIERS_NO_DEVICE_H_

#include <string>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway::test {

// Returns why the runtime of a device is not available here. Empty if it is, or if it should be, as
// the host's always should. The build sets SPILLWAY_EXPECTS_CUDA if nvcc is there, is not too old,
// and CUDA was not turned off.
inline std::string WhyNoDevice(Device device, const absl::Status& status) {
  if (device.kind() == Device::Kind::kHost) return "";
  const bool no_machine = absl::IsNotFound(status);
  const bool no_build = absl::IsUnimplemented(status) && SPILLWAY_EXPECTS_CUDA == 0;
  return no_machine || no_build ? std::string(status.message()) : "";
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_TIERS_NO_DEVICE_H_
