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

// Whether this build has CUDA's runtime; the machine may still lack a driver or a GPU.
bool HasCuda();

// Both saying what to do: Unimplemented for a runtime that this build does not have, NotFound for a
// device (or its driver) that this machine does not have.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(Device device);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_MAKE_DEVICE_RUNTIME_H_
