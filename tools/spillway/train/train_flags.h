// SPDX-License-Identifier: Apache-2.0
//
// The flags of `spillway train`, with their defaults, and what they mean for the trainer.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/spillway/train/run_outputs.h"
#include "tools/trainer/trainer.h"

namespace spillway::command {

// kNone: the store is scratch. Nothing is synced or kept, and no space goes to a state of before.
enum class Durability : uint8_t { kCommit, kNone };

struct TrainFlags {
  std::string model;  // folder with config.json and, unless random_init, the weights
  std::string data;   // folder with train.npy and, if evaluated, valid.npy
  std::string save;   // folder to export to at the end; empty: none
  RunOutputFlags outputs;
  bool random_init = false;
  bool resume = false;
  bool convert = false;  // the store's optimizer state, into the format of these flags
  bool hash_weights = false;
  bool json = false;
  Durability durability = Durability::kCommit;
  std::optional<DType> gradient_dtype;                           // none: the precision's own
  std::optional<trainer::AccumulationOrder> accumulation_order;  // none: the cheaper one
  std::optional<int64_t> steps;
  OptimizerFlags optimizer;
  trainer::TrainerOptions trainer;
  EngineFlags engine;
};

void AddTrainFlags(CLI::App* app, TrainFlags* flags);

// Usage errors: what is missing or contradicts itself. Then completes `flags->trainer` from the
// other fields.
absl::Status FinishTrainFlags(TrainFlags* flags);
// Of the flags, those that were given and change nothing beside the others: a line each.
std::vector<std::string> DescribeUnusedFlags(const TrainFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_
