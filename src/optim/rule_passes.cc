// SPDX-License-Identifier: Apache-2.0

#include "src/optim/rule_passes.h"

#include <algorithm>
#include <cmath>

#include "src/optim/rule_kernels.h"
#include "src/optim/state_format.h"
#include "src/optim/state_specs.h"

namespace spillway::optim {
namespace {

constexpr Access kRead = Access::kRead;
constexpr Access kReadWrite = Access::kReadWrite;
constexpr auto kNone = std::nullopt;

}  // namespace

std::vector<Pass> PassesOf(const Rule& rule, StateFormat format,
                           const std::vector<int64_t>& shape) {
  // The accesses are to the gradient, the master weight, the moments and a weight beside its
  // master, in this order.
  const Pass update = {PassKind::kUpdate, {kRead, kReadWrite, kReadWrite, Access::kDiscard}};
  const Pass norms = {PassKind::kNorms, {kRead, kRead, kRead, kNone}};
  const bool is_vector = shape.size() < 2;
  switch (rule.kind) {
    case RuleKind::kAdamW:
    case RuleKind::kAdam:
    case RuleKind::kSgd:
    case RuleKind::kRmsProp:
    case RuleKind::kLion: return {update};
    case RuleKind::kLamb: return is_vector ? std::vector{update} : std::vector{norms, update};
    case RuleKind::kLars: {
      if (is_vector) return {update};
      // The norms need no moments, but a split master weight has its residuals in the moments'
      // tensor.
      if (IsSplit(format)) return {norms, update};
      return {{PassKind::kNorms, {kRead, kRead, kNone, kNone}}, update};
    }
    case RuleKind::kAdafactor: {
      if (is_vector) return {norms, update};
      return {{PassKind::kFactors, {kRead, kRead, kReadWrite, kNone}},
              {PassKind::kFactoredNorm, {kRead, kNone, kRead, kNone}},
              {PassKind::kFactoredUpdate, {kRead, kReadWrite, kRead, Access::kDiscard}}};
    }
  }
  return {};
}

float StepSizeOf(const Rule& rule, const Update& update, const TensorSums& sums,
                 uint64_t num_elements) {
  const double lr = update.learning_rate;
  const double weight = std::sqrt(sums.weight), direction = std::sqrt(sums.direction);
  const bool is_zero = weight == 0 || direction == 0;  // false for NaN, which must show
  if (rule.kind == RuleKind::kLamb) return ToFloat(is_zero ? lr : lr * (weight / direction));
  if (rule.kind == RuleKind::kLars) {
    const double decayed = direction + update.weight_decay * weight;
    return ToFloat(is_zero ? lr : lr * (rule.trust_coefficient * weight / decayed));
  }
  const double root = std::sqrt(static_cast<double>(num_elements));
  const double rho = std::min(lr, 1 / std::sqrt(static_cast<double>(update.step)));
  const double scale = weight / root, length = direction / root / rule.clipping_threshold;
  const double alpha = rho * (scale < rule.epsilon2 ? rule.epsilon2 : scale);
  return ToFloat(alpha / (length < 1 ? 1 : length));
}

}  // namespace spillway::optim
