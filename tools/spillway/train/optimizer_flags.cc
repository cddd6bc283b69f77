// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/optimizer_flags.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/trainer/exact.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/rule_constants.h"

namespace spillway::command {
namespace {

using trainer::ParameterGroups;
using trainer::RateFactor;
using trainer::RateScaling;

// The default weight decay of AdamW in PyTorch and of LAMB in its paper. The other rules have none
// by default.
constexpr double kUsualDecay = 0.01;
constexpr double kMostFactor = 1e6;
constexpr int64_t kMostWindows = int64_t{1} << 40;

std::string Word(RuleKind kind) { return std::string(Name(kind)); }
std::string Word(StateFormat format) { return std::string(Name(format)); }

bool DecaysUsually(RuleKind kind) { return kind == RuleKind::kAdamW || kind == RuleKind::kLamb; }

// Lists the rules for which `has` returns true, as in "adamw, adam and lion".
std::string Those(bool (*has)(RuleKind)) {
  std::vector<std::string> words;
  for (int kind = 0; kind < kNumRuleKinds; ++kind) {
    if (has(static_cast<RuleKind>(kind))) words.push_back(Word(static_cast<RuleKind>(kind)));
  }
  std::string text = words[0];
  for (size_t i = 1; i < words.size(); ++i)
    absl::StrAppend(&text, i + 1 == words.size() ? " and " : ", ", words[i]);
  return text;
}

AddedOption AddMaybeNumber(CLI::App* app, const std::string& name, std::optional<double>* value,
                           const Range& range, const std::string& help) {
  const auto parse = [range](const std::string& text) { return ParseNumber(text, range); };
  return AddParsed(app, name, value, parse, help).Type("NUMBER");
}

absl::StatusOr<std::pair<double, double>> ParseBetas(const std::string& text) {
  const size_t comma = text.find(',');
  const Range range = {.least = 0, .most = 1, .open_most = true};
  const auto beta1 = ParseNumber(text.substr(0, comma), range);
  const auto beta2 = ParseNumber(comma == std::string::npos ? "" : text.substr(comma + 1), range);
  if (beta1.ok() && beta2.ok()) return std::pair(*beta1, *beta2);
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not two numbers from 0 to below 1, as 0.9,0.95"));
}

absl::StatusOr<std::vector<RateFactor>> ParseFactors(const std::string& text) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> parts, ParseList(text));
  std::vector<RateFactor> factors;
  for (const std::string& part : parts) {
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' is not PATTERN=FACTOR, as in '*embed*=0.1'", part));
    }
    SPILLWAY_ASSIGN_OR_RETURN(const double factor,
                              ParseNumber(part.substr(equals + 1), {0, kMostFactor}));
    factors.push_back({part.substr(0, equals), factor});
  }
  return factors;
}

void AddRule(CLI::App* app, OptimizerFlags* flags) {
  std::vector<std::pair<std::string, RuleKind>> rules;
  for (int kind = 0; kind < kNumRuleKinds; ++kind)
    rules.emplace_back(Word(static_cast<RuleKind>(kind)), static_cast<RuleKind>(kind));
  AddChoice<RuleKind>(
      app, "--optimizer", &flags->kind, rules,
      "The update rule: PyTorch's of these names, of lion, lamb and lars their "
      "papers'. lamb, lars and adafactor take norms of each parameter first; "
      "adafactor's step is relative to a parameter's size, and --lr the most of it");
  AddParsed(app, "--betas", &flags->betas, ParseBetas,
            "Decay of the moments of adamw (default: 0.9,0.95), adam (0.9,0.999), lion (0.9,0.99) "
            "and lamb (0.9,0.999)")
      .Type("A,B");
  AddMaybeNumber(app, "--eps", &flags->epsilon, {.least = 0, .most = 1, .open_least = true},
                 "Epsilon of adamw, adam and rmsprop (default: 1e-8), lamb (1e-6) and adafactor "
                 "(1.2e-7, beside the root of its second moment)");
  AddMaybeNumber(app, "--momentum", &flags->momentum, {.least = 0, .most = 1, .open_most = true},
                 "Of sgd and rmsprop (default: 0, none) and lars (0.9)");
  AddMaybeNumber(
      app, "--dampening", &flags->dampening, {.least = 0, .most = 1, .open_most = true},
      "Of sgd with --momentum: the share of each gradient but the first that is left out "
      "of the momentum (default: 0)");
  AddFlag(app, "--nesterov", &flags->nesterov,
          "Of sgd with --momentum: step by the gradient and the momentum that follows from it");
  AddFlag(app, "--centered", &flags->centered,
          "Of rmsprop: divide by the root of the gradient's variance, not of its mean square");
  AddFlag(app, "--amsgrad", &flags->amsgrad,
          "Of adamw and adam: divide by the root of the largest second moment so far, which is "
          "stored beside the others");
  AddFlag(app, "--maximize", &flags->maximize, "Train for a larger loss: negate each gradient");
  AddMaybeNumber(app, "--weight-decay", &flags->weight_decay, {0, 100},
                 "Of adamw (default: 0.01), lion and adafactor (0) decoupled, of lamb (0.01) added "
                 "to the step whose norm it takes, of the others (0) added to the gradient");
  AddMaybeNumber(app, "--trust-coefficient", &flags->trust_coefficient, {0, kMostFactor},
                 "Of lars: what the ratio of a parameter's norm to its gradient's is multiplied by "
                 "(default: 0.001)");
  AddMaybeNumber(app, "--eps2", &flags->epsilon2, {0, kMostFactor},
                 "Of adafactor: the least root mean square of a parameter that its step is scaled "
                 "by (default: 0.001)");
  AddMaybeNumber(app, "--beta2-decay", &flags->beta2_decay, {0, 100},
                 "Of adafactor: in step t the new square has the weight t^-NUMBER in the second "
                 "moment (default: 0.8)");
  AddMaybeNumber(app, "--update-clip", &flags->update_clip,
                 {.least = 0, .most = kMostFactor, .open_least = true},
                 "Of adafactor: the largest root mean square of a step, before its scale "
                 "(default: 1)");
}

void AddGroups(CLI::App* app, OptimizerFlags* flags) {
  AddList(app, "--no-decay", &flags->groups.no_decay,
          "Parameters without weight decay: shell patterns over their names, as '*norm*'")
      .Type("PATTERN,...");
  AddParsed(app, "--lr-for", &flags->groups.rate_factors, ParseFactors,
            "Parameters whose learning rate is multiplied, as '*embed*=0.1'; the last pattern that "
            "matches counts. Adafactor's steps are smaller than the rate later on, whatever it is")
      .Type("PATTERN=FACTOR,...");
  AddList(app, "--freeze", &flags->groups.frozen,
          "Parameters that stay as they are, without gradient or optimizer state. Under fp16-amp "
          "and bf16 they are what 16 bits hold of the model's, and are exported so")
      .Type("PATTERN,...");
}

void AddRateScale(CLI::App* app, OptimizerFlags* flags) {
  AddChoice<RateScaling>(
      app, "--lr-scale", &flags->rate_scaling,
      {{"none", RateScaling::kUnscaled},
       {"linear", RateScaling::kLinear},
       {"sqrt", RateScaling::kSqrt}},
      "Multiply the learning rate by a step's windows (--batch times --accumulate) over "
      "--lr-batch, or by the root of that");
  const auto parse = [](const std::string& text) { return ParseInteger(text, 1, kMostWindows); };
  AddParsed(app, "--lr-batch", &flags->rate_batch, parse,
            "Windows of a step that --lr is meant for; with --lr-scale")
      .Type("N");
}

// UsageError if a constant is given that the rule would ignore.
absl::Status CheckHas(bool is_given, bool (*has)(RuleKind), const char* flag, RuleKind kind) {
  if (!is_given || has(kind)) return absl::OkStatus();
  return UsageError(absl::StrFormat("%s: %s has none; leave it out, or use one of %s", flag,
                                    Word(kind), Those(has)));
}

absl::Status CheckConstants(const OptimizerFlags& flags) {
  const auto check = [&flags](bool is_given, bool (*has)(RuleKind), const char* flag) {
    return CheckHas(is_given, has, flag, flags.kind);
  };
  SPILLWAY_RETURN_IF_ERROR(check(flags.betas.has_value(), trainer::HasBetas, "--betas"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.epsilon.has_value(), trainer::HasEpsilon, "--eps"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.momentum.has_value(), trainer::HasMomentum, "--momentum"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.dampening.has_value(), trainer::IsSgd, "--dampening"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.nesterov, trainer::IsSgd, "--nesterov"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.centered, trainer::IsRmsProp, "--centered"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.amsgrad, trainer::HasAmsgrad, "--amsgrad"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.trust_coefficient.has_value(), trainer::HasTrustCoefficient,
                                 "--trust-coefficient"));
  SPILLWAY_RETURN_IF_ERROR(check(flags.epsilon2.has_value(), trainer::IsAdafactor, "--eps2"));
  SPILLWAY_RETURN_IF_ERROR(
      check(flags.beta2_decay.has_value(), trainer::IsAdafactor, "--beta2-decay"));
  return check(flags.update_clip.has_value(), trainer::IsAdafactor, "--update-clip");
}

absl::Status CheckMomentum(const OptimizerFlags& flags) {
  const bool has_momentum = flags.momentum.value_or(0) != 0;
  if (flags.nesterov && !has_momentum)
    return UsageError("--nesterov needs a momentum: add --momentum NUMBER, as --momentum 0.9");
  if (flags.nesterov && flags.dampening.value_or(0) != 0)
    return UsageError("--nesterov needs a dampening of 0: leave one of the two out");
  if (flags.dampening && !has_momentum)
    return UsageError("--dampening does nothing without --momentum NUMBER");
  return absl::OkStatus();
}

absl::Status CheckRateScale(const OptimizerFlags& flags) {
  const bool scales = flags.rate_scaling != RateScaling::kUnscaled;
  if (scales && !flags.rate_batch)
    return UsageError(
        "--lr-scale needs --lr-batch N: the windows of a step that --lr is meant for");
  if (!scales && flags.rate_batch)
    return UsageError("--lr-batch does nothing without --lr-scale linear or sqrt");
  return absl::OkStatus();
}

std::vector<std::string> NamesOf(const hf::ModelConfig& config) {
  std::vector<std::string> names;
  for (const trainer::ParameterShape& parameter : trainer::ListParameters(config))
    names.push_back(parameter.name);
  return names;
}

}  // namespace

void AddOptimizerFlags(CLI::App* app, OptimizerFlags* flags) {
  AddRule(app, flags);
  AddChoice<StateFormat>(
      app, "--state-format", &flags->format,
      {{"fp32", StateFormat::kF32},
       {"bf16", StateFormat::kBf16},
       {"8bit", StateFormat::k8Bit},
       {"compact", StateFormat::kCompact}},
      "Of the moments: bf16 takes half of fp32's bytes and rounds without bias, 8bit "
      "takes a quarter, as codes with a scale for each 256 elements of a row. "
      "Master weights stay fp32, but under compact, which wants 16-bit weights: it keeps 8 more "
      "bits of each in their place, and 8-bit moments, all rounded without bias. adafactor has "
      "fp32 alone");
  AddGroups(app, flags);
  AddRateScale(app, flags);
}

absl::Status FinishOptimizerFlags(const OptimizerFlags& flags, trainer::TrainerOptions* options) {
  const RuleKind kind = flags.kind;
  SPILLWAY_RETURN_IF_ERROR(CheckConstants(flags));
  SPILLWAY_RETURN_IF_ERROR(CheckMomentum(flags));
  SPILLWAY_RETURN_IF_ERROR(CheckRateScale(flags));
  Rule& rule = options->model.rule;
  rule = UsualRule(kind);
  if (flags.betas) std::tie(rule.beta1, rule.beta2) = *flags.betas;
  if (flags.epsilon) rule.epsilon = *flags.epsilon;
  if (flags.momentum) rule.momentum = *flags.momentum;
  if (flags.dampening) rule.dampening = *flags.dampening;
  rule.nesterov = flags.nesterov;
  rule.centered = flags.centered;
  rule.amsgrad = flags.amsgrad;
  rule.maximize = flags.maximize;
  if (flags.trust_coefficient) rule.trust_coefficient = *flags.trust_coefficient;
  if (flags.epsilon2) rule.epsilon2 = *flags.epsilon2;
  if (flags.beta2_decay) rule.beta2_decay = *flags.beta2_decay;
  if (flags.update_clip) rule.clipping_threshold = *flags.update_clip;
  if (static_cast<float>(rule.epsilon) <= 0)
    return UsageError(
        absl::StrFormat("--eps: %s is 0 in single precision", trainer::Exact(rule.epsilon)));
  if (kind == RuleKind::kAdafactor && static_cast<float>(rule.epsilon * rule.epsilon) <= 0) {
    return UsageError(
        absl::StrFormat("--eps: the square of %s, adafactor's least second moment, "
                        "is 0 in single precision",
                        trainer::Exact(rule.epsilon)));
  }
  if (kind == RuleKind::kAdafactor && !Exists(rule, flags.format)) {
    return UsageError(
        absl::StrFormat("--state-format: adafactor's state is small and kept in fp32 "
                        "alone, not in %s",
                        Word(flags.format)));
  }
  if (!Exists(rule, flags.format)) {
    return UsageError(absl::StrFormat(
        "--state-format: %s without momentum keeps no state that could be %s; use fp32, or compact "
        "with weights of 16 bits",
        Word(kind), Word(flags.format)));
  }
  if (flags.format == StateFormat::kCompact) {
    if (options->model.precision == trainer::Precision::kFp32) {
      return UsageError(
          "--state-format: compact keeps the rest of 16-bit weights, and --precision fp32 has "
          "none; use --precision fp16-amp or bf16, or another format");
    }
    if (!flags.groups.fp32.empty()) {
      return UsageError(
          "--state-format: compact keeps the rest of 16-bit weights, and --fp32 makes others; "
          "leave --fp32 out, or use another format");
    }
  }
  options->model.state_format = flags.format;
  options->model.groups = flags.groups;
  options->weight_decay = flags.weight_decay.value_or(DecaysUsually(kind) ? kUsualDecay : 0);
  options->rate_scaling = flags.rate_scaling;
  options->rate_batch = flags.rate_batch.value_or(0);
  return absl::OkStatus();
}

absl::Status CheckMatches(const char* flag, const std::vector<std::string>& patterns,
                          const hf::ModelConfig& config) {
  const std::vector<std::string> names = NamesOf(config);
  const std::string bad = trainer::FirstWithoutMatch(patterns, names);
  if (bad.empty()) return absl::OkStatus();
  return UsageError(absl::StrFormat("%s: '%s' matches none of the model's %d parameters, %s to %s",
                                    flag, bad, names.size(), names.front(), names.back()));
}

absl::Status CheckPatterns(const ParameterGroups& groups, const hf::ModelConfig& config) {
  std::vector<std::string> with_factors;
  for (const RateFactor& of : groups.rate_factors) with_factors.push_back(of.pattern);
  SPILLWAY_RETURN_IF_ERROR(CheckMatches("--fp32", groups.fp32, config));
  SPILLWAY_RETURN_IF_ERROR(CheckMatches("--no-decay", groups.no_decay, config));
  SPILLWAY_RETURN_IF_ERROR(CheckMatches("--lr-for", with_factors, config));
  SPILLWAY_RETURN_IF_ERROR(CheckMatches("--freeze", groups.frozen, config));
  const std::vector<std::string> names = NamesOf(config);
  const bool are_all_frozen = std::all_of(
      names.begin(), names.end(), [&](const std::string& name) { return groups.IsFrozen(name); });
  return are_all_frozen ? UsageError("--freeze leaves nothing to train") : absl::OkStatus();
}

std::string DescribeRate(const trainer::TrainerOptions& options) {
  if (options.rate_scaling == RateScaling::kUnscaled) return "";
  const bool is_linear = options.rate_scaling == RateScaling::kLinear;
  const double scale = trainer::RateScale(options);
  return absl::StrFormat(
      "learning rate %s: %s times %s, as a step has %d windows and --lr is meant for %d "
      "(--lr-scale %s)",
      trainer::Exact(options.schedule.learning_rate * scale),
      trainer::Exact(options.schedule.learning_rate), trainer::Exact(scale),
      options.model.micro_batch * options.model.accumulate, options.rate_batch,
      is_linear ? "linear" : "sqrt");
}

}  // namespace spillway::command
