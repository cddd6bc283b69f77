// SPDX-License-Identifier: Apache-2.0
//
// The one place that knows which device runtimes this build has.

#ifndef SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_
#define SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tiers/device_runtime.h"

namespace spillway::tiers {

// FailedPrecondition, saying what to do, for a device that this build or this machine does not
// have.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(Device device);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_
