// SPDX-License-Identifier: Apache-2.0
//
// The flags of the machine that `spillway plan` and `spillway simulate` are asked about.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_MACHINE_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_MACHINE_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/plan/hardware.h"

namespace spillway::command {

// What is given counts before what the machine that --gpu names has.
struct MachineFlags {
  std::string gpu = "h200";
  std::optional<uint64_t> dram_bytes;
  std::optional<Drives> drives;
  std::optional<double> link;
  std::optional<double> flops_share;
  std::optional<double> update_rate;
  std::optional<double> checksum_rate;
  double latency_seconds = 0;
  double jitter = 0;
  uint64_t seed = 1;
};

void AddMachineFlags(CLI::App* app, MachineFlags* flags);

// UsageError: the GPU is unknown, or neither it nor a flag gives memory or drives.
absl::StatusOr<Hardware> ReadMachine(const MachineFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_MACHINE_FLAGS_H_
