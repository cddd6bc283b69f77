// SPDX-License-Identifier: Apache-2.0

#include "src/optim/parameter_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "src/optim/element_codecs.h"
#include "src/optim/state_specs.h"

namespace spillway::optim {
namespace {

constexpr double kMostFloat = std::numeric_limits<float>::max();

using base::View;

template <typename... Words>
absl::Status Refuse(const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer: ", words...));
}

// The comparisons are written so that NaN fails.
bool IsBelowOne(double value) { return value >= 0 && value < 1; }
bool IsRate(double value) { return value >= 0 && value <= kMostFloat; }
bool IsAboveZero(double value) { return IsRate(value) && static_cast<float>(value) > 0; }

bool Has(RuleKind kind, std::initializer_list<RuleKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

std::string ShapeName(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Returns the spec of a weight or gradient: that of its tensor, or one made for the caller's
// memory.
absl::StatusOr<TensorSpec> Describe(const Engine& engine, const Values& values, const char* what,
                                    const std::vector<int64_t>& shape) {
  if (values.memory == nullptr) {
    if (values.tensor == TensorId()) return Refuse("a ", what, " is neither tensor nor memory");
    SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(values.tensor));
    return engine.Spec(values.tensor);
  }
  if (values.tensor != TensorId()) return Refuse("a ", what, " is both a tensor and memory");
  TensorSpec spec = {.name = absl::StrCat("the caller's ", what), .dtype = values.dtype};
  spec.shape = shape;
  SPILLWAY_RETURN_IF_ERROR(CheckValueType(spec.dtype, what, spec.name));
  if (reinterpret_cast<uintptr_t>(values.memory) % ElementBytes(spec.dtype) != 0) {
    return Refuse(spec.name, " lies at an address that is no multiple of its elements' ",
                  ElementBytes(spec.dtype), " bytes");
  }
  return spec;
}

// Returns how many of the parameter's elements a tile of one of its tensors covers. The rows of
// each tensor are equal parts of the parameter.
uint64_t TileElements(const TensorSpec& spec, uint64_t num_elements) {
  if (spec.tile_rows == 0) return num_elements;
  const uint64_t row_elements = num_elements / spec.num_rows();
  return std::min(static_cast<uint64_t>(spec.tile_rows), spec.num_rows()) * row_elements;
}

Operand OperandOf(const Values& values, const TensorSpec& spec, OperandKind kind,
                  uint64_t num_elements) {
  return {.tensor = values.tensor,
          .memory = static_cast<std::byte*>(values.memory),
          .dtype = spec.dtype,
          .kind = kind,
          .transient = spec.transient,
          .tile_elements = TileElements(spec, num_elements)};
}

absl::Status CheckSameShape(const TensorSpec& spec, const char* what, const TensorSpec& weight) {
  if (spec.shape == weight.shape) return absl::OkStatus();
  return Refuse(what, " '", spec.name, "' has the shape ", ShapeName(spec.shape), " and weight '",
                weight.name, "' ", ShapeName(weight.shape));
}

// Returns the specs of a parameter's state tensors; null for those that are missing.
absl::StatusOr<std::vector<const TensorSpec*>> SpecsOf(const Engine& engine,
                                                       const std::vector<TensorId>& state) {
  std::vector<const TensorSpec*> specs;
  for (const TensorId id : state) {
    if (id != TensorId()) SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(id));
    specs.push_back(id == TensorId() ? nullptr : &engine.Spec(id));
  }
  return specs;
}

// Checks that the state tensors match `expected`. Their names and tiles may differ.
absl::Status CheckState(const std::vector<TensorSpec>& expected,
                        const std::vector<const TensorSpec*>& state, const TensorSpec& weight) {
  if (state.size() != expected.size()) {
    return Refuse("weight '", weight.name, "' has ", state.size(), " state tensors; it needs ",
                  expected.size());
  }
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i] == nullptr) {
      return Refuse("the state of weight '", weight.name, "' lacks '", expected[i].name, "'");
    }
    const TensorSpec& spec = *state[i];
    const char* const what = expected[i].role == Role::kMoment ? "moment" : "master weight";
    if (spec.dtype != expected[i].dtype) {
      return Refuse(what, " '", spec.name, "' is ", View(Name(spec.dtype)), "; it must be ",
                    View(Name(expected[i].dtype)));
    }
    SPILLWAY_RETURN_IF_ERROR(CheckSameShape(spec, what, expected[i]));
  }
  return absl::OkStatus();
}

// A tile that ended inside a block would leave the block's scale to two updates. Of all rows, only
// those of vectors are cut by tiles.
absl::Status CheckCutsAtBlocks(const CheckedParameter& parameter, const TensorSpec& weight) {
  for (const Operand& operand : parameter.operands) {
    if (operand.tile_elements % parameter.row.num_elements == 0 ||
        operand.tile_elements % parameter.row.block_elements == 0)
      continue;
    return Refuse("vector '", weight.name, "' is cut every ", operand.tile_elements,
                  " elements; its ", parameter.format == StateFormat::k8Bit ? "8-bit" : "compact",
                  " state needs a multiple of ", parameter.row.block_elements);
  }
  return absl::OkStatus();
}

std::vector<TensorId> AllTensors(const ParameterTensors& tensors) {
  std::vector<TensorId> ids = tensors.state;
  if (tensors.weight.memory == nullptr) ids.push_back(tensors.weight.tensor);
  if (tensors.gradient && tensors.gradient->memory == nullptr)
    ids.push_back(tensors.gradient->tensor);
  return ids;
}

// Returns InvalidArgument if one of the parameter's tensors is in `seen`, or twice among them.
absl::Status CheckDistinct(const Engine& engine, const ParameterTensors& tensors,
                           const std::set<TensorId>& seen) {
  std::set<TensorId> own;
  for (const TensorId id : AllTensors(tensors)) {
    if (seen.count(id) > 0 || !own.insert(id).second)
      return Refuse("tensor '", engine.Spec(id).name, "' is given twice");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRule(const Rule& rule) {
  using enum RuleKind;
  const auto refuse = [](const char* name, double value, const char* range) {
    return Refuse(name, " is ", value, "; it must be ", range);
  };
  if (static_cast<int>(rule.kind) >= kNumRuleKinds) return Refuse("there is no such rule");
  if (Has(rule.kind, {kAdamW, kAdam, kLion, kLamb})) {
    if (!IsBelowOne(rule.beta1)) return refuse("beta1", rule.beta1, "in [0, 1)");
    if (!IsBelowOne(rule.beta2)) return refuse("beta2", rule.beta2, "in [0, 1)");
  }
  if (rule.kind == kRmsProp && !IsBelowOne(rule.alpha))
    return refuse("alpha", rule.alpha, "in [0, 1)");
  if (Has(rule.kind, {kSgd, kRmsProp, kLars}) && !(rule.momentum >= 0 && rule.momentum <= 1))
    return refuse("momentum", rule.momentum, "in [0, 1]");
  if (rule.kind == kSgd && !(std::fabs(rule.dampening) <= kMostFloat))
    return refuse("dampening", rule.dampening, "finite");
  if (rule.kind == kSgd && rule.nesterov && rule.dampening != 0)
    return refuse("dampening", rule.dampening, "0 with nesterov");
  if (rule.kind == kLars && !IsRate(rule.trust_coefficient))
    return refuse("trust_coefficient", rule.trust_coefficient, "at least 0 and finite");
  if (Has(rule.kind, {kAdamW, kAdam, kRmsProp, kLamb, kAdafactor}) && !IsAboveZero(rule.epsilon))
    return refuse("epsilon", rule.epsilon, "above 0 in single precision");
  if (rule.kind != kAdafactor) return absl::OkStatus();
  if (!(ToFloat(rule.epsilon * rule.epsilon) > 0))
    return refuse("epsilon", rule.epsilon, "one whose square is above 0 in single precision");
  if (!IsRate(rule.beta2_decay))
    return refuse("beta2_decay", rule.beta2_decay, "at least 0 and finite");
  if (!IsRate(rule.epsilon2)) return refuse("epsilon2", rule.epsilon2, "at least 0 and finite");
  if (!IsRate(rule.clipping_threshold) || !(rule.clipping_threshold > 0))
    return refuse("clipping_threshold", rule.clipping_threshold, "above 0 and finite");
  return absl::OkStatus();
}

absl::Status CheckUpdate(const Update& update, const CheckedParameter& parameter) {
  if (update.step < 1) return Refuse("step is ", update.step, "; updates are counted from 1");
  if (!IsRate(update.learning_rate))
    return Refuse("learning_rate is ", update.learning_rate, "; it must be at least 0 and finite");
  if (!IsRate(update.weight_decay))
    return Refuse("weight_decay is ", update.weight_decay, "; it must be at least 0 and finite");
  if (!(std::fabs(update.gradient_scale) <= kMostFloat))
    return Refuse("gradient_scale is ", update.gradient_scale, "; it must be finite");
  if (!update.rule) return absl::OkStatus();
  SPILLWAY_RETURN_IF_ERROR(CheckRule(*update.rule));
  if (update.rule->kind != parameter.rule.kind) {
    return Refuse("the rule of an update, ", View(Name(update.rule->kind)),
                  ", has other state than the optimizer's, ", View(Name(parameter.rule.kind)));
  }
  const std::vector<std::string_view> has = MomentNames(parameter.rule);
  for (const std::string_view needed : MomentNames(*update.rule)) {
    if (std::find(has.begin(), has.end(), needed) != has.end()) continue;
    return Refuse("the rule of an update of parameter ", update.parameter, " needs ", View(needed),
                  ", which the parameter's state does not have: add the parameter with a rule that "
                  "has it");
  }
  return absl::OkStatus();
}

namespace {

// Checks a parameter whose state tensors have, or will have, the specs `state`.
absl::StatusOr<CheckedParameter> CheckTensors(const Engine& engine, const Rule& optimizers,
                                              StateFormat format, const ParameterTensors& tensors,
                                              const std::vector<const TensorSpec*>& state) {
  const Rule rule = tensors.rule.value_or(optimizers);
  if (tensors.rule) SPILLWAY_RETURN_IF_ERROR(CheckRule(rule));
  if (rule.kind != optimizers.kind) {
    return Refuse("the rule of a parameter is ", View(Name(rule.kind)), ", and the optimizer's is ",
                  View(Name(optimizers.kind)));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec weight,
                            Describe(engine, tensors.weight, "weight", tensors.shape));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<TensorSpec> expected,
                            StateSpecs(rule, format, weight));
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t elements, CountElements(weight.name, weight.shape));
  CheckedParameter checked;
  checked.num_elements = static_cast<uint64_t>(elements);
  checked.rule = rule;
  if (!tensors.gradient && state.empty()) return checked;
  SPILLWAY_RETURN_IF_ERROR(CheckState(expected, state, weight));
  if (!tensors.gradient) return checked;
  SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec gradient,
                            Describe(engine, *tensors.gradient, "gradient", weight.shape));
  SPILLWAY_RETURN_IF_ERROR(CheckValueType(gradient.dtype, "gradient", gradient.name));
  SPILLWAY_RETURN_IF_ERROR(CheckSameShape(gradient, "gradient", weight));

  const auto add = [&](const Values& values, const TensorSpec& spec, OperandKind kind) {
    checked.operands.push_back(OperandOf(values, spec, kind, checked.num_elements));
  };
  add(*tensors.gradient, gradient, OperandKind::kGradient);
  checked.has_weight_beside_master = weight.dtype != DType::kF32 && !IsSplit(format);
  if (!checked.has_weight_beside_master) add(tensors.weight, weight, OperandKind::kMaster);
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_moment = expected[i].role == Role::kMoment;
    add(tensors.state.empty() ? TensorId() : tensors.state[i], *state[i],
        is_moment ? OperandKind::kMoment : OperandKind::kMaster);
  }
  if (checked.has_weight_beside_master) add(tensors.weight, weight, OperandKind::kWeight);
  checked.passes = PassesOf(rule, format, weight.shape);
  checked.row_elements = EncodedRowElements(weight.shape);
  const std::vector<std::string_view> moments = MomentNames(rule, IsFactored(rule, weight.shape));
  for (size_t m = 0; m < moments.size(); ++m) {
    checked.moments.push_back({.name = moments[m],
                               .slot = SlotOf(rule.kind, moments[m]),
                               .map = MapOf(moments[m]),
                               .keying_name = {}});
  }
  if (IsFactored(rule, weight.shape)) {
    checked.matrix = {.num_rows = static_cast<uint64_t>(weight.shape[weight.shape.size() - 2]),
                      .num_columns = static_cast<uint64_t>(weight.shape.back())};
  }
  checked.format = RestingFormat(format, moments.size());
  if (IsEncoded(checked.format)) {
    checked.row = RowOf(format, weight.shape, moments.size());
    SPILLWAY_RETURN_IF_ERROR(CheckCutsAtBlocks(checked, weight));
    if (IsSplit(format)) checked.residual_keying_name = state.back()->name;
  }
  for (size_t m = 0; m < moments.size(); ++m) {
    checked.moments[m].keying_name = IsEncoded(format)
                                         ? KeyingNameOf(moments, m, state.back()->name)
                                         : state[expected.size() - moments.size() + m]->name;
  }
  return checked;
}

}  // namespace

absl::StatusOr<CheckedParameter> CheckParameter(const Engine& engine, const Rule& rule,
                                                StateFormat format, const ParameterTensors& tensors,
                                                std::set<TensorId>* seen) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto state, SpecsOf(engine, tensors.state));
  SPILLWAY_ASSIGN_OR_RETURN(CheckedParameter checked,
                            CheckTensors(engine, rule, format, tensors, state));
  SPILLWAY_RETURN_IF_ERROR(CheckDistinct(engine, tensors, *seen));
  checked.tensors = AllTensors(tensors);
  seen->insert(checked.tensors.begin(), checked.tensors.end());
  return checked;
}

absl::Status CheckParameterBeforeState(const Engine& engine, const Rule& rule, StateFormat format,
                                       const ParameterTensors& tensors,
                                       std::span<const TensorSpec> state,
                                       const std::set<TensorId>& seen) {
  ParameterTensors others = tensors;
  others.state.clear();
  std::vector<const TensorSpec*> specs;
  for (const TensorSpec& spec : state) specs.push_back(&spec);
  SPILLWAY_RETURN_IF_ERROR(CheckTensors(engine, rule, format, others, specs).status());
  return CheckDistinct(engine, others, seen);
}

}  // namespace spillway::optim
