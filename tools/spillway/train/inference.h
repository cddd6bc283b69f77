// SPDX-License-Identifier: Apache-2.0
//
// Loads a model for its forward pass only, for eval and generate.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_INFERENCE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_INFERENCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// UsageError if --seq is longer than the model's max_position_embeddings.
absl::Status CheckSequence(int64_t sequence, const hf::ModelConfig& config);
// Returns the checked value of --seq. If it was not given (0), returns the smaller of 256 and the
// model's max_position_embeddings.
absl::StatusOr<int64_t> SequenceFor(int64_t given, const hf::ModelConfig& config);

struct InferenceFlags {
  std::string model;     // a Hugging Face folder
  int64_t sequence = 0;  // 0: not given
  trainer::Precision precision = trainer::Precision::kFp32;
  std::vector<std::string> fp32;  // patterns of the parameters that stay in fp32
  EngineFlags engine;
};

void AddInferenceFlags(CLI::App* app, InferenceFlags* flags);
absl::Status CheckInferenceFlags(const InferenceFlags& flags);

// Members are destroyed in reverse order: the model before the pool and the engine that it uses.
struct InferenceModel {
  std::unique_ptr<Engine> engine;  // its store, if any, is scratch
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<trainer::Model> model;
};

// Checks the budgets, opens a scratch engine and loads the weights of the folder. `stop` has the
// same meaning as in OpenEngine.
absl::StatusOr<InferenceModel> LoadForInference(const InferenceFlags& flags,
                                                const hf::ModelConfig& config,
                                                const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_INFERENCE_H_
