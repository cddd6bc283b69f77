// SPDX-License-Identifier: Apache-2.0
//
// `--gpu this`: the machine that the command runs on, measured once a month. The host computes, and
// its device tier is memory, too.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_THIS_MACHINE_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_THIS_MACHINE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "tools/spillway/plan/hardware.h"

namespace spillway::command {

inline constexpr std::string_view kThisMachine = "this";

// Measures this machine and the drive of the current folder, unless they are known. Of the memory
// that is free, the device tier has an eighth. Errors of ProfileOf.
absl::StatusOr<Hardware> MeasureThisMachine();

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_THIS_MACHINE_H_
