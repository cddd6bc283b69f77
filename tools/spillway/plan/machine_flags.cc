// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/machine_flags.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "spillway/types.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/plan/this_machine.h"

namespace spillway::command {
namespace {

constexpr uint64_t kLeastDram = uint64_t{1} << 20;
constexpr uint64_t kMostDram = uint64_t{1} << 60;

// What a preset knows of its machine; memory and drives are zero where it knows none.
absl::StatusOr<Hardware> PresetMachine(const std::string& name) {
  if (name == kThisMachine) return MeasureThisMachine();
  const absl::StatusOr<Gpu> gpu = FindGpu(name);
  if (!gpu.ok()) return UsageError(absl::StrCat("--gpu: ", gpu.status().message()));
  return Hardware{.gpu = *gpu,
                  .dram_bytes = gpu->dram_bytes,
                  .drives = {gpu->drives, gpu->drive_read, gpu->drive_write, gpu->drive_bytes},
                  .link = gpu->link};
}

}  // namespace

void AddMachineFlags(CLI::App* app, MachineFlags* flags) {
  AddText(app, "--gpu", &flags->gpu,
          "v100, a100, h100, h200, rtx4090, the machine dgx-2; or this: the host computes, and its "
          "rates and the drive of this folder are measured once a month")
      .Default(flags->gpu);
  AddOption(
      app, "--dram",
      [flags](const std::string& text) -> absl::Status {
        SPILLWAY_ASSIGN_OR_RETURN(flags->dram_bytes, base::ParseBytes(text));
        return absl::OkStatus();
      },
      "Memory of the machine; the engine may take 7/8 of it")
      .Type("SIZE");
  AddParsed(app, "--nvme", &flags->drives, ParseDrives,
            "Drives: 8x7GB/s:3.8TB, or with a rate for writes 8x7/5GB/s:3.8TB")
      .Type("DRIVES");
  AddParsed(app, "--link", &flags->link, ParseRate,
            "Between memory and GPU, in one direction (default: the GPU's)")
      .Type("RATE");
  AddParsed(
      app, "--flops-share", &flags->flops_share,
      [](const std::string& text) { return ParseNumber(text, {.least = 1e-6, .most = 1}); },
      "Of the GPU's peak that products reach (default: 0.4)")
      .Type("NUMBER");
  AddParsed(app, "--update-rate", &flags->update_rate, ParseRate,
            "Bytes of state, weights and gradients that the CPU updates (default: 100GB/s)")
      .Type("RATE");
  AddParsed(app, "--checksum-rate", &flags->checksum_rate, ParseRate,
            "Bytes that the CPU hashes (default: 80GB/s)")
      .Type("RATE");
}

absl::StatusOr<Hardware> ReadMachine(const MachineFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(Hardware hardware, PresetMachine(flags.gpu));
  if (flags.dram_bytes) hardware.dram_bytes = *flags.dram_bytes;
  if (flags.drives) hardware.drives = *flags.drives;
  hardware.link = flags.link.value_or(hardware.link);
  hardware.flops_share = flags.flops_share.value_or(hardware.flops_share);
  hardware.update_rate = flags.update_rate.value_or(hardware.update_rate);
  hardware.checksum = flags.checksum_rate.value_or(hardware.checksum);
  hardware.latency_seconds = flags.latency_seconds;
  hardware.jitter = flags.jitter;
  hardware.seed = flags.seed;
  if (!flags.dram_bytes && hardware.dram_bytes == 0)
    return UsageError("--dram SIZE is needed: the memory of the machine, as 512GB");
  if (hardware.dram_bytes < kLeastDram) return UsageError("--dram must be 1MiB or more");
  if (hardware.dram_bytes > kMostDram)
    return UsageError("--dram must be at most 2^60 bytes: no machine has more memory");
  if (hardware.drives.count == 0) return UsageError("--nvme DRIVES is needed, as 4x7GB/s:3.8TB");
  return hardware;
}

}  // namespace spillway::command
