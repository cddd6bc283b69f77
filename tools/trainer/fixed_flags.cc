// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/fixed_flags.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/trainer/exact.h"
#include "tools/trainer/rule_constants.h"

namespace spillway::trainer {
namespace {

constexpr char kOn[] = "on";  // the value of a flag that takes none

// Describes what was introduced later, if it differs from the earlier behaviour.
std::string DescribeLater(const hf::ModelConfig& config) {
  using Kind = hf::RopeScaling::Kind;
  const hf::RopeScaling& rope = config.rope_scaling;
  std::string text;
  if (config.model_type != "llama")
    absl::StrAppend(&text, ", ", config.model_type, " with ", config.activation);
  if (rope.kind == Kind::kLinear)
    absl::StrAppend(&text, ", linear rope scaling by ", Exact(rope.factor));
  if (rope.kind == Kind::kLlama3) {
    absl::StrAppend(&text, ", llama3 rope scaling by ", Exact(rope.factor), " from ",
                    Exact(rope.low_frequencies), " to ", Exact(rope.high_frequencies), " of ",
                    rope.original_positions);
  }
  for (size_t layer = 0; layer < config.windows.size(); ++layer) {
    if (layer == 0 || config.windows[layer] != config.windows[layer - 1])
      absl::StrAppend(&text, ", window ", config.windows[layer], " from layer ", layer);
  }
  if (!config.has_prefix) absl::StrAppend(&text, ", names without a prefix");
  return text;
}

std::string DescribeModel(const hf::ModelConfig& config) {
  return absl::StrFormat(
      "vocab_size %d, hidden_size %d, intermediate_size %d, num_layers %d, num_heads %d, "
      "num_kv_heads %d, head_dim "
      "%d, rms_norm_eps %s, rope_theta %s, %s embeddings%s",
      config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers,
      config.num_heads, config.num_kv_heads, config.head_dim, Exact(config.rms_norm_eps),
      Exact(config.rope_theta), config.tie_word_embeddings ? "tied" : "untied",
      DescribeLater(config));
}

std::string GradientWord(DType type) {
  if (type == DType::kBF16) return "bf16";
  return type == DType::kF32 ? "fp32" : "fp16";
}

// Appends the constants that the rule has, and the weight decay.
void AppendRule(const Rule& rule, double weight_decay, std::vector<FixedFlag>* flags) {
  if (HasBetas(rule.kind))
    flags->emplace_back("--betas", Exact(rule.beta1) + "," + Exact(rule.beta2));
  if (HasMomentum(rule.kind)) flags->emplace_back("--momentum", Exact(rule.momentum));
  if (HasEpsilon(rule.kind)) flags->emplace_back("--eps", Exact(rule.epsilon));
  if (HasTrustCoefficient(rule.kind))
    flags->emplace_back("--trust-coefficient", Exact(rule.trust_coefficient));
  if (IsAdafactor(rule.kind)) {
    flags->emplace_back("--eps2", Exact(rule.epsilon2));
    flags->emplace_back("--beta2-decay", Exact(rule.beta2_decay));
    flags->emplace_back("--update-clip", Exact(rule.clipping_threshold));
  }
  flags->emplace_back("--weight-decay", Exact(weight_decay));
}

// Appends the flags that were introduced later, if their values differ from the earlier behaviour.
void AppendLater(const TrainerOptions& options, std::vector<FixedFlag>* flags) {
  const ModelOptions& model = options.model;
  if (model.rule.kind != RuleKind::kAdamW)
    flags->emplace_back("--optimizer", std::string(Name(model.rule.kind)));
  const Rule& rule = model.rule;
  if (IsSgd(rule.kind) && rule.dampening != 0)
    flags->emplace_back("--dampening", Exact(rule.dampening));
  const auto append_if = [&](bool is_on, const char* flag) {
    if (is_on) flags->emplace_back(flag, kOn);
  };
  append_if(IsSgd(rule.kind) && rule.nesterov, "--nesterov");
  append_if(IsRmsProp(rule.kind) && rule.centered, "--centered");
  append_if(HasAmsgrad(rule.kind) && rule.amsgrad, "--amsgrad");
  append_if(rule.maximize, "--maximize");
  if (model.state_format != StateFormat::kF32)
    flags->emplace_back("--state-format", std::string(Name(model.state_format)));
  if (model.on_gpu) flags->emplace_back("--device", "cuda");
  const ParameterGroups& groups = model.groups;
  if (!groups.frozen.empty()) flags->emplace_back("--freeze", absl::StrJoin(groups.frozen, ","));
  if (!groups.fp32.empty()) flags->emplace_back("--fp32", absl::StrJoin(groups.fp32, ","));
  if (!groups.no_decay.empty())
    flags->emplace_back("--no-decay", absl::StrJoin(groups.no_decay, ","));
  std::vector<std::string> factors;
  for (const RateFactor& of : groups.rate_factors)
    factors.push_back(absl::StrCat(of.pattern, "=", Exact(of.factor)));
  if (!factors.empty()) flags->emplace_back("--lr-for", absl::StrJoin(factors, ","));
  if (options.rate_scaling == RateScaling::kUnscaled) return;
  flags->emplace_back("--lr-scale",
                      options.rate_scaling == RateScaling::kLinear ? "linear" : "sqrt");
  flags->emplace_back("--lr-batch", absl::StrCat(options.rate_batch));
}

}  // namespace

std::vector<FixedFlag> FixedFlags(const TrainerOptions& options, const hf::ModelConfig& config,
                                  const TokenData& train_data, int num_threads) {
  const LossScalerOptions& scaler = options.loss_scaler;
  std::vector<FixedFlag> flags = {
      {"--model", DescribeModel(config)},
      {"--data", train_data.fingerprint()},
      {"--seq", absl::StrFormat("%d", options.model.sequence)},
      {"--batch", absl::StrFormat("%d", options.model.micro_batch)},
      {"--accumulate", absl::StrFormat("%d", options.model.accumulate)},
      {"--precision", std::string(Name(options.model.precision))},
      {"--grad-dtype", GradientWord(options.model.gradient_dtype)},
      {"--threads", absl::StrFormat("%d", num_threads)},
      {"--lr", Exact(options.schedule.learning_rate)},
      {"--schedule", options.schedule.kind == ScheduleKind::kConstant ? "constant" : "cosine"},
      {"--warmup-steps", absl::StrFormat("%d", options.schedule.warmup_steps)},
  };
  AppendRule(options.model.rule, options.weight_decay, &flags);
  flags.emplace_back("--clip", Exact(options.clip_norm));
  flags.emplace_back("--order", options.order == Order::kSequential ? "sequential" : "shuffled");
  if (options.order == Order::kShuffled)
    flags.emplace_back("--seed", absl::StrFormat("%d", options.seed));
  if (scaler.enabled) {
    flags.emplace_back("--loss-scale", Exact(scaler.initial_scale));
    flags.emplace_back("--loss-scale-growth", Exact(scaler.growth_factor));
    flags.emplace_back("--loss-scale-backoff", Exact(scaler.backoff_factor));
    flags.emplace_back("--loss-scale-interval", absl::StrFormat("%d", scaler.growth_interval));
  }
  AppendLater(options, &flags);
  return flags;
}

}  // namespace spillway::trainer
