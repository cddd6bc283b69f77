// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/cross_entropy.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

float LargestOf(const float* row, size_t n, float start) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVector largest = hn::Set(d, start);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) largest = hn::Max(largest, hn::LoadU(d, row + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) result = row[i] > result ? row[i] : result;
  return result;
}

float SumOfExp(const float* row, size_t n, float largest) {
  const FloatTag d;
  const FloatVector shift = hn::Set(d, largest);
  FloatVector sum = hn::Zero(d);
  ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
    FloatVector e = ExpKeepingNaN(d, hn::Sub(LoadUpTo(d, row + i, count), shift));
    if (count < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
    sum = hn::Add(sum, e);
  });
  return Sum(d, sum);
}

void ScaledExp(const float* row, size_t n, float largest, float scale, float* out) {
  const FloatTag d;
  const FloatVector shift = hn::Set(d, largest);
  const FloatVector scales = hn::Set(d, scale);
  ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
    const FloatVector e = ExpKeepingNaN(d, hn::Sub(LoadUpTo(d, row + i, count), shift));
    StoreUpTo(hn::Mul(e, scales), d, out + i, count);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {

HWY_EXPORT(LargestOf);
HWY_EXPORT(SumOfExp);
HWY_EXPORT(ScaledExp);

double OnlineSoftmax::Loss() const {
  return std::log(sum) + static_cast<double>(largest) - static_cast<double>(target_logit);
}

void GatherSoftmax(const float* logits, int64_t tokens, int64_t first_column, int64_t columns,
                   const int32_t* targets, OnlineSoftmax* states) {
  const size_t n = static_cast<size_t>(columns);
  for (int64_t t = 0; t < tokens; ++t, logits += columns) {
    OnlineSoftmax& state = states[t];
    const float largest = HWY_DYNAMIC_DISPATCH(LargestOf)(logits, n, state.largest);
    if (state.sum > 0) {
      state.sum *= std::exp(static_cast<double>(state.largest) - static_cast<double>(largest));
    }
    state.sum += HWY_DYNAMIC_DISPATCH(SumOfExp)(logits, n, largest);
    state.largest = largest;
    const int64_t target = targets[t] - first_column;
    if (target >= 0 && target < columns) state.target_logit = logits[target];
  }
}

void CrossEntropyBackward(const float* logits, int64_t tokens, int64_t first_column,
                          int64_t columns, const int32_t* targets, const OnlineSoftmax* states,
                          float scale, float* gradients) {
  const size_t n = static_cast<size_t>(columns);
  for (int64_t t = 0; t < tokens; ++t, logits += columns, gradients += columns) {
    const float factor = static_cast<float>(static_cast<double>(scale) / states[t].sum);
    HWY_DYNAMIC_DISPATCH(ScaledExp)(logits, n, states[t].largest, factor, gradients);
    const int64_t target = targets[t] - first_column;
    if (target >= 0 && target < columns) gradients[target] -= scale;
  }
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
