// SPDX-License-Identifier: Apache-2.0
//
// The flags of `spillway train` that define how weights are updated: the rule and its constants,
// the format of its state, and groups of parameters that are trained differently from the others.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_OPTIMIZER_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_OPTIMIZER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/trainer/parameter_groups.h"
#include "tools/trainer/trainer.h"

namespace spillway::command {

// A constant that is not given has the rule's usual value.
struct OptimizerFlags {
  RuleKind kind = RuleKind::kAdamW;
  StateFormat format = StateFormat::kF32;
  std::optional<std::pair<double, double>> betas;
  std::optional<double> epsilon;
  std::optional<double> momentum;
  std::optional<double> dampening;
  bool nesterov = false;
  bool centered = false;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<double> trust_coefficient;
  std::optional<double> epsilon2;
  std::optional<double> beta2_decay;
  std::optional<double> update_clip;
  std::optional<double> weight_decay;
  trainer::ParameterGroups groups;
  trainer::RateScaling rate_scaling = trainer::RateScaling::kUnscaled;
  std::optional<int64_t> rate_batch;
};

void AddOptimizerFlags(CLI::App* app, OptimizerFlags* flags);

// Checks the flags, then sets the members of `options` that depend on them. UsageError: the rule
// does not have a constant that is given, its state cannot have the format, or flags contradict
// each other.
absl::Status FinishOptimizerFlags(const OptimizerFlags& flags, trainer::TrainerOptions* options);

// UsageError if a pattern of `flag` matches none of the model's parameters.
absl::Status CheckMatches(const char* flag, const std::vector<std::string>& patterns,
                          const hf::ModelConfig& config);
// UsageError if a pattern of one of the flags in `groups` matches no parameter, or if all
// parameters are frozen.
absl::Status CheckPatterns(const trainer::ParameterGroups& groups, const hf::ModelConfig& config);

// Describes how the learning rate is scaled; "" if it is not scaled.
std::string DescribeRate(const trainer::TrainerOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_OPTIMIZER_FLAGS_H_
