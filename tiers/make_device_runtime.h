// SPDX-License-Identifier: Apache-2.0
//
// Makes device runtimes. This is the only place that depends on which runtimes this build has.

#ifndef SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_
#define SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_

#include <memory>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tiers/device_runtime.h"

namespace spillway::tiers {

// Whether this build has CUDA's runtime; the machine may still lack a driver or a GPU.
bool HasCuda();

// Makes the runtime for `device`. Unimplemented if this build does not have that runtime; NotFound
// if this machine does not have the device or its driver. Both messages say what to do.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(Device device);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_
