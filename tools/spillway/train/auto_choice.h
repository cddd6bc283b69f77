// SPDX-License-Identifier: Apache-2.0
//
// What `spillway train --auto` chooses: candidates of micro-batches, their order, budgets and
// places, each ranked by a simulation of its dry step on this machine and its GPU, if one computes.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_CHOICE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_CHOICE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "src/plan/transfer.h"
#include "tools/hf/config.h"
#include "tools/spillway/machine/machine_profile.h"
#include "tools/spillway/train/train_flags.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/train_state.h"

namespace spillway::command {

struct AutoChoice {
  std::string why;          // lines for people: the machine, the memory, the choice
  double step_seconds = 0;  // simulated
  plan::LinkBytes step_bytes;
};

// The GPU that computes, before the run takes anything of it.
struct GpuAtHand {
  std::string name;
  trainer::gpu::DeviceRates rates;
  uint64_t free_bytes = 0;
};

// Chooses what was not given and sets it in the flags. Numbers follow from micro-batches alone, and
// from the tokens of a step; a run that is resumed keeps those of its store (`resumed`). The
// state's format and the types stay as they are. `memory_bytes` is what the run may take if
// --memory was not given; it is the host's. UsageError: flags contradict each other, or --memory or
// --device-bytes of a GPU do not suit the model, and what would. ResourceExhausted with kCannot:
// this machine has too little memory. FailedPrecondition: its GPU has, with kCannot or kUsage.
// Unimplemented: a rate of the GPU is not known.
absl::StatusOr<AutoChoice> ChooseFlags(const hf::ModelConfig& config,
                                       const std::function<absl::StatusOr<ThisMachine>()>& measure,
                                       uint64_t memory_bytes, const std::optional<GpuAtHand>& gpu,
                                       const std::optional<trainer::TrainState>& resumed,
                                       TrainFlags* flags);

// What a run may take of the memory that is free: the system and the page cache keep an eighth.
uint64_t MemoryForRun(uint64_t available_bytes);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_CHOICE_H_
