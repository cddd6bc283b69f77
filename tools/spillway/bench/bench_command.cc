// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench`: the parent command of the benchmarks.

#include "tools/spillway/command/commands.h"

namespace spillway::command {

void AddBenchCommand(CLI::App* app, Run* run) {
  CLI::App* bench =
      AddCommand(app, "bench",
                 "Measure this machine: 'bench io' its disks, 'bench tiers' "
                 "the way to the device, 'bench update' the optimizer, 'bench train' whole steps.");
  AddBenchIoCommand(bench, run);
  AddBenchTiersCommand(bench, run);
  AddBenchUpdateCommand(bench, run);
  AddBenchTrainCommand(bench, run);
}

}  // namespace spillway::command
