// SPDX-License-Identifier: Apache-2.0
//
// The flags of `spillway train` that say how weights are updated: the rule and its constants, the
// format of its state, and parameters that are trained otherwise than the rest.

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

// What is not given is the rule's usual value.
struct OptimizerFlags {
  RuleKind kind = RuleKind::kAdamW;
  StateFormat format = StateFormat::kF32;
  std::optional<std::pair<double, double>> betas;
  std::optional<double> epsilon;
  std::optional<double> momentum;
  std::optional<double> trust_coefficient;
  std::optional<double> epsilon2;
  std::optional<double> beta2_decay;
  std::optional<double> update_clip;
  std::optional<double> weight_decay;
  trainer::ParameterGroups groups;
  trainer::RateScaling rate_scaling = trainer::RateScaling::kNone;
  std::optional<int64_t> rate_batch;
};

void AddOptimizerFlags(CLI::App* app, OptimizerFlags* flags);

// Usage errors: a constant that the rule has not, a format that its state cannot have. Then fills
// what of `options` these flags decide.
absl::Status FinishOptimizerFlags(const OptimizerFlags& flags, trainer::TrainerOptions* options);

// Usage error: a pattern of `flag` that matches none of the model's parameters.
absl::Status CheckMatches(const char* flag, const std::vector<std::string>& patterns,
                          const hf::ModelConfig& config);
// Usage errors: that of any flag of `groups`, or nothing left to train.
absl::Status CheckPatterns(const trainer::ParameterGroups& groups, const hf::ModelConfig& config);

// The scale of the learning rate in words; "" if there is none.
std::string DescribeRate(const trainer::TrainerOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_OPTIMIZER_FLAGS_H_
