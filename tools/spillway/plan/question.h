// SPDX-License-Identifier: Apache-2.0
//
// What `spillway plan` and `spillway simulate` are asked: a model, a recipe and a machine.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_QUESTION_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_QUESTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/plan/hardware.h"
#include "tools/spillway/plan/model_presets.h"
#include "tools/spillway/plan/timed_step.h"
#include "tools/spillway/train/train_flags.h"

namespace spillway::command {

struct QuestionFlags {
  std::string model;  // a preset, a config.json, or a folder that has one
  TrainFlags recipe;
  std::optional<int64_t> tokens;  // of a step
  std::string gpu = "h200";
  std::optional<uint64_t> dram_bytes;
  std::optional<Drives> drives;
  std::optional<double> link;
  double flops_share = 0.4;
  double update_rate = 100e9;   // bytes of state a second that the CPU updates
  double checksum_rate = 20e9;  // bytes a second that the CPU hashes
  double latency_seconds = 0;
  double jitter = 0;
  uint64_t seed = 1;
};

void AddQuestionFlags(CLI::App* app, QuestionFlags* flags);

struct Question {
  std::string title;                    // of the model
  const ModelPreset* preset = nullptr;  // null: the user's own configuration
  hf::ModelConfig config;
  trainer::ModelOptions options;
  Placement placement;
  Hardware hardware;
  uint64_t num_parameters = 0;
  int64_t tokens = 0;  // of a step
  bool chose_micro_batch = false;

  // The memory that the engine may take: what a GPU's driver and what the system need is left.
  uint64_t device_bytes() const { return hardware.gpu.memory_bytes / 16 * 15; }
  uint64_t pinned_bytes() const { return hardware.dram_bytes / 8 * 7; }
  StepRates rates() const;
};

// Completes and checks the flags. Unless --batch was given, the micro-batch is the largest that
// fits. UsageError: flags that make no sense, with the fix. Errors of ReadModelConfig.
absl::StatusOr<Question> ReadQuestion(QuestionFlags flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_QUESTION_H_
