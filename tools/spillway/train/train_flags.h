// SPDX-License-Identifier: Apache-2.0
//
// The flags of `spillway train` with their defaults, and the trainer's options that follow from
// them.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/auto_flags.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/spillway/train/run_outputs.h"
#include "tools/trainer/trainer.h"

namespace spillway::command {

inline constexpr int64_t kMostTokensOfMicroBatch = int64_t{1} << 20;
inline constexpr int64_t kMostMicroBatchesOfStep = int64_t{1} << 16;

// kNone: the store is scratch. Nothing is synced or kept, and no space is taken by an earlier
// state.
enum class Durability : uint8_t { kCommit, kNone };

struct TrainFlags {
  std::string model;  // folder with config.json and, unless random_init, the weights
  std::string data;   // folder with train.npy and, for evaluations, valid.npy
  std::string save;   // folder to export to at the end; empty: none
  RunOutputFlags outputs;
  bool random_init = false;
  bool no_dropout = false;  // train without the dropout that config.json asks for
  bool resume = false;
  bool convert = false;  // convert the store's optimizer state to these flags' format
  bool hash_weights = false;
  bool json = false;
  Durability durability = Durability::kCommit;
  std::optional<DType> gradient_dtype;                           // none: the precision's own
  std::optional<trainer::AccumulationOrder> accumulation_order;  // none: the cheaper one
  std::optional<int64_t> steps;
  AutoFlags automatic;
  OptimizerFlags optimizer;
  trainer::TrainerOptions trainer;
  EngineFlags engine;
};

void AddTrainFlags(CLI::App* app, TrainFlags* flags);
// Adds those that say what a step computes: micro-batches, types, places and the optimizer.
void AddRecipeFlags(CLI::App* app, TrainFlags* flags);

// Checks the flags, then completes `flags->trainer` from the other fields. UsageError: a flag is
// missing, or flags contradict each other.
absl::Status FinishTrainFlags(TrainFlags* flags);
// The same for the flags of AddRecipeFlags alone.
absl::Status FinishRecipeFlags(TrainFlags* flags);
// Describes the training flags that were given but have no effect because of the others.
std::optional<std::string> DescribeUnusedFlags(const TrainFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_FLAGS_H_
