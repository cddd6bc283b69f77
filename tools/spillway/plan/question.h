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
#include "tools/spillway/plan/asked_model.h"
#include "tools/spillway/plan/hardware.h"
#include "tools/spillway/plan/machine_flags.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/spillway/train/train_flags.h"

namespace spillway::command {

struct QuestionFlags {
  DimensionFlags dimensions;
  MachineFlags machine;
  TrainFlags recipe;              // its `model` is --model
  std::optional<int64_t> tokens;  // of a step
};

void AddQuestionFlags(CLI::App* app, QuestionFlags* flags);
// Adds the flags of model and recipe, for a question about no machine.
void AddModelQuestionFlags(CLI::App* app, QuestionFlags* flags);

struct Question {
  AskedModel model;
  trainer::ModelOptions options;
  Placement placement;
  Hardware hardware;
  RuleKind rule = RuleKind::kAdamW;
  uint64_t most_device_bytes = kUnlimited;  // --device-bytes
  uint64_t most_pinned_bytes = kUnlimited;  // --pinned-bytes
  bool keeps_commits = true;                // a commit's bytes stay until the next one is complete
  uint64_t num_parameters = 0;
  int64_t tokens = 0;              // of a step
  bool chose_tokens = false;       // no flag gave them
  bool chose_micro_batch = false;  // no flag gave it

  const hf::ModelConfig& config() const { return *model.config; }
  // The memory that the engine may take: what a GPU's driver and what the system need is left.
  uint64_t device_bytes() const;
  uint64_t pinned_bytes() const;
  StepRates rates() const;
};

// Completes and checks the flags. Unless --batch was given, the micro-batch is the largest that
// fits. UsageError: flags that make no sense, with the fix.
absl::StatusOr<Question> ReadQuestion(QuestionFlags flags);
// The same for the flags of AddModelQuestionFlags alone. The micro-batch is 1 unless --batch was
// given.
absl::StatusOr<Question> ReadModelQuestion(QuestionFlags flags);

// Chooses the micro-batch again, after something else of the question changed. Does nothing unless
// chose_micro_batch.
absl::Status ChooseMicroBatch(Question* question);

// UsageError if a simulation with the model's own tiles would take too long.
absl::Status CheckSimulable(const Question& question);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_QUESTION_H_
