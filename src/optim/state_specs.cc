// SPDX-License-Identifier: Apache-2.0
//
// The names of rules and formats, which pairs of them exist, and the state tensors that a parameter
// needs.

#include "src/optim/state_specs.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/optimizer.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "src/optim/state_format.h"

namespace spillway {
namespace {

using base::View;

constexpr std::array<std::string_view, kNumRuleKinds> kRuleNames = {
    "adamw", "adam", "sgd", "rmsprop", "lion", "lamb", "lars", "adafactor"};
constexpr std::array<std::string_view, kNumStateFormats> kFormatNames = {"fp32", "bf16", "8bit",
                                                                         "compact"};

// A limit with which the bytes of a parameter and its state fit an int64 in every format.
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 64;

bool IsKnown(RuleKind kind) { return static_cast<size_t>(kind) < kRuleNames.size(); }
bool IsKnown(StateFormat format) { return static_cast<size_t>(format) < kFormatNames.size(); }

}  // namespace

std::string_view Name(RuleKind kind) {
  return IsKnown(kind) ? kRuleNames[static_cast<size_t>(kind)] : "";
}

std::string_view Name(StateFormat format) {
  return IsKnown(format) ? kFormatNames[static_cast<size_t>(format)] : "";
}

Rule UsualRule(RuleKind kind) {
  Rule rule = {.kind = kind};
  if (kind == RuleKind::kAdam) rule.beta2 = 0.999;
  if (kind == RuleKind::kLion) rule.beta2 = 0.99;
  if (kind == RuleKind::kLamb) {
    rule.beta2 = 0.999;
    rule.epsilon = 1e-6;
  }
  if (kind == RuleKind::kLars) rule.momentum = 0.9;
  if (kind == RuleKind::kAdafactor) rule.epsilon = std::numeric_limits<float>::epsilon();
  return rule;
}

bool Exists(const Rule& rule, StateFormat format) {
  if (!IsKnown(rule.kind) || !IsKnown(format)) return false;
  if (rule.kind == RuleKind::kAdafactor) return format == StateFormat::kF32;
  return format == StateFormat::kF32 || format == StateFormat::kCompact ||
         !optim::MomentNames(rule).empty();
}

namespace optim {

std::vector<std::string_view> MomentNames(const Rule& rule, bool is_factored) {
  const bool has_momentum = rule.momentum != 0;
  switch (rule.kind) {
    case RuleKind::kAdamW:
    case RuleKind::kAdam:
      return rule.amsgrad ? std::vector<std::string_view>{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
                          : std::vector<std::string_view>{"exp_avg", "exp_avg_sq"};
    case RuleKind::kLamb: return {"exp_avg", "exp_avg_sq"};
    case RuleKind::kLion: return {"exp_avg"};
    case RuleKind::kSgd:
    case RuleKind::kLars:
      return has_momentum ? std::vector<std::string_view>{"momentum_buffer"}
                          : std::vector<std::string_view>{};
    case RuleKind::kRmsProp: {
      std::vector<std::string_view> names = {rule.centered ? "grad_var" : "square_avg"};
      if (has_momentum) names.emplace_back("momentum_buffer");
      if (rule.centered) names.emplace_back("grad_avg");
      return names;
    }
    case RuleKind::kAdafactor:
      return is_factored ? std::vector<std::string_view>{"row_var", "col_var"}
                         : std::vector<std::string_view>{"variance"};
  }
  return {};
}

bool IsFactored(const Rule& rule, const std::vector<int64_t>& shape) {
  return rule.kind == RuleKind::kAdafactor && shape.size() > 1;
}

size_t SlotOf(RuleKind kind, std::string_view moment_name) {
  if (moment_name == "max_exp_avg_sq" || moment_name == "grad_avg") return 2;
  const bool is_second = moment_name == "exp_avg_sq" || moment_name == "col_var" ||
                         (kind == RuleKind::kRmsProp && moment_name == "momentum_buffer");
  return is_second ? 1 : 0;
}

CodeMap MapOf(std::string_view moment_name) {
  if (moment_name == "max_exp_avg_sq") return CodeMap::kGrowing;
  const bool is_square =
      moment_name == "exp_avg_sq" || moment_name == "square_avg" || moment_name == "grad_var";
  return is_square ? CodeMap::kUnsigned : CodeMap::kSigned;
}

std::string KeyingNameOf(const std::vector<std::string_view>& moments, size_t m,
                         std::string_view tensor_name) {
  const auto is_signed = [&](size_t i) { return MapOf(moments[i]) == CodeMap::kSigned; };
  for (size_t before = 0; before < m; ++before) {
    if (is_signed(before) == is_signed(m)) return absl::StrCat(View(tensor_name), ":2");
  }
  return std::string(tensor_name);
}

absl::Status CheckFormat(const Rule& rule, StateFormat format) {
  if (Exists(rule, format)) return absl::OkStatus();
  if (!IsKnown(rule.kind)) return absl::InvalidArgumentError("optimizer: there is no such rule");
  if (!IsKnown(format)) return absl::InvalidArgumentError("optimizer: there is no such format");
  if (rule.kind == RuleKind::kAdafactor) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer: adafactor's state rests as fp32 alone, not as ", View(Name(format))));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer: ", View(Name(rule.kind)),
                   " without momentum keeps no state that could rest as ", View(Name(format))));
}

absl::StatusOr<int64_t> CountElements(std::string_view name, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer: weight '", View(name),
                                                     "' has a dimension of ", dimension,
                                                     "; each must be at least 1"));
    }
    if (dimension > kMostElements / elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "optimizer: weight '", View(name), "' has more than ", kMostElements, " elements"));
    }
    elements *= dimension;
  }
  return elements;
}

absl::Status CheckValueType(DType dtype, const char* what, std::string_view name) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer: ", what, " '", View(name), "' is ",
                                                 View(Name(dtype)),
                                                 "; it must be f32, f16 or bf16"));
}

}  // namespace optim

absl::StatusOr<std::vector<TensorSpec>> StateSpecs(const Rule& rule, StateFormat format,
                                                   const TensorSpec& weight) {
  const std::vector<std::string_view> moments =
      optim::MomentNames(rule, optim::IsFactored(rule, weight.shape));
  // A parameter without moments may be one of an optimizer whose others have some.
  if (!moments.empty() || !IsKnown(rule.kind) || !IsKnown(format))
    SPILLWAY_RETURN_IF_ERROR(optim::CheckFormat(rule, format));
  SPILLWAY_RETURN_IF_ERROR(optim::CheckValueType(weight.dtype, "weight", weight.name));
  if (optim::IsSplit(format) && weight.dtype == DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer: weight '", weight.name,
        "' is f32, and compact state is the rest of a 16-bit weight: make the weight f16 or bf16, "
        "or use fp32, bf16 or 8bit"));
  }
  SPILLWAY_RETURN_IF_ERROR(optim::CountElements(weight.name, weight.shape).status());
  if (weight.tile_rows < 0) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer: weight '", weight.name,
                                                   "' has tiles of ", weight.tile_rows, " rows"));
  }
  std::vector<TensorSpec> specs;
  const auto add = [&](absl::string_view suffix, DType dtype, Role role) {
    TensorSpec spec = weight;
    absl::StrAppend(&spec.name, "/", suffix);
    spec.dtype = dtype;
    spec.role = role;
    spec.transient = false;
    specs.push_back(std::move(spec));
  };
  if (weight.dtype != DType::kF32 && !optim::IsSplit(format))
    add("master", DType::kF32, Role::kMasterWeight);
  if (moments.empty() && !optim::IsSplit(format)) return specs;
  if (optim::IsEncoded(format)) {
    const optim::EncodedRow row = optim::RowOf(format, weight.shape, moments.size());
    add(optim::IsSplit(format) ? "compact" : "state8", DType::kU8, Role::kMoment);
    TensorSpec& state = specs.back();
    const bool is_one_row = weight.shape.size() < 2;
    state.shape = {is_one_row ? 1 : weight.shape[0], static_cast<int64_t>(row.size_bytes())};
    if (is_one_row) state.tile_rows = 0;
    return specs;
  }
  if (optim::IsFactored(rule, weight.shape)) {
    add("row_var", DType::kF32, Role::kMoment);
    specs.back().shape.back() = 1;
    add("col_var", DType::kF32, Role::kMoment);
    TensorSpec& columns = specs.back();
    columns.shape[columns.shape.size() - 2] = 1;
    if (columns.shape.size() == 2) columns.tile_rows = 0;
    return specs;
  }
  // Each format has its own names, so that both states can exist during a conversion.
  const bool is_bf16 = format == StateFormat::kBf16;
  for (const std::string_view name : moments) {
    add(absl::StrCat(View(name), is_bf16 ? "_bf16" : ""), is_bf16 ? DType::kBF16 : DType::kF32,
        Role::kMoment);
  }
  return specs;
}

}  // namespace spillway
