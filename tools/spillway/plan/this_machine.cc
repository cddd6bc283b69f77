// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/this_machine.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "absl/strings/str_format.h"
#include "src/base/available_memory.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/machine/machine_profile.h"

namespace spillway::command {

absl::StatusOr<Hardware> MeasureThisMachine() {
  const ProfileOptions options = {.threads = std::max(1U, std::thread::hardware_concurrency()),
                                  .cache = CacheFolder(),
                                  .stop = &CatchInterrupts(),
                                  .announce = [](std::string_view text) {
                                    absl::FPrintF(stderr, "note: %s\n", base::View(text));
                                  }};
  SPILLWAY_ASSIGN_OR_RETURN(const ThisMachine machine, ProfileOfAll({"."}, options));
  const uint64_t memory = base::AvailableMemoryBytes();
  struct statvfs space{};
  Hardware hardware;
  hardware.gpu = {.name = kThisMachine,
                  .title = "this machine's processors",
                  .flops = machine.rates.flops,
                  .flops_fp32 = machine.rates.flops,
                  .memory_bytes = memory / 8,
                  .memory_bytes_per_second = machine.rates.memory,
                  .link = std::min(machine.rates.copy_in, machine.rates.copy_out),
                  .source = "measured here"};
  hardware.dram_bytes = memory - memory / 8;
  hardware.drives.read = machine.rates.drive->read;
  hardware.drives.write = machine.rates.drive->write;
  hardware.drives.both = machine.rates.drive->both;
  if (::statvfs(".", &space) == 0)
    hardware.drives.size_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  hardware.link = hardware.gpu.link;
  hardware.flops_share = 1;
  hardware.update_rate = machine.rates.update[static_cast<size_t>(StateFormat::kF32)];
  hardware.checksum = machine.rates.checksum;
  return hardware;
}

}  // namespace spillway::command
