// SPDX-License-Identifier: Apache-2.0
//
// When a test for a GPU may be skipped: the machine has none. A build that lacks CUDA though nvcc
// is there is a mistake, and no reason.

#ifndef SPILLWAY_TESTS_TIERS_NO_DEVICE_H_
#define SPILLWAY_TESTS_TIERS_NO_DEVICE_H_

#include <string>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway::test {

// Why the runtime of a device cannot be had here; empty if it can, or if it should, as the host's
// always. SPILLWAY_EXPECTS_CUDA is the build's: nvcc is there and CUDA was not turned off.
inline std::string WhyNoDevice(Device device, const absl::Status& status) {
  if (device.kind() == Device::Kind::kHost) return "";
  const bool no_machine = absl::IsNotFound(status);
  const bool no_build = absl::IsUnimplemented(status) && SPILLWAY_EXPECTS_CUDA == 0;
  return no_machine || no_build ? std::string(status.message()) : "";
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_TIERS_NO_DEVICE_H_
