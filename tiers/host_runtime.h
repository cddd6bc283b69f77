// SPDX-License-Identifier: Apache-2.0
//
// The host as a device: ordinary memory for the arena, a thread for each stream, and events with
// CUDA's semantics, so that a machine without a GPU runs the same engine, asynchronously, under the
// same budget.

#ifndef SPILLWAY_TIERS_HOST_RUNTIME_H_
#define SPILLWAY_TIERS_HOST_RUNTIME_H_

#include <memory>

#include "tiers/device_runtime.h"

namespace spillway::tiers {

// Never fails. Destruction waits for the work of streams that are left.
std::unique_ptr<DeviceRuntime> CreateHostRuntime();

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_HOST_RUNTIME_H_
