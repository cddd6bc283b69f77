// SPDX-License-Identifier: Apache-2.0
//
// The DeviceRuntime for the host: ordinary memory for the arena, a thread for each stream, and
// events with CUDA's semantics. A machine without a GPU thus runs the same engine, asynchronously
// and under the same budget.

#ifndef SPILLWAY_TIERS_HOST_RUNTIME_H_
#define SPILLWAY_TIERS_HOST_RUNTIME_H_

#include <memory>

#include "tiers/device_runtime.h"

namespace spillway::tiers {

// Creates the runtime; never fails. Destruction waits for the work of streams that were not
// destroyed.
std::unique_ptr<DeviceRuntime> CreateHostRuntime();

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_HOST_RUNTIME_H_
