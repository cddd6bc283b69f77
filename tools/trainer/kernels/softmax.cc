// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/softmax.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

float Largest(const float* row, size_t n) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVector largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) largest = hn::Max(largest, hn::LoadU(d, row + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) result = row[i] > result ? row[i] : result;
  return result;
}

void CausalSoftmax(const VisibleKeys& visible, int64_t rows, int64_t keys, float* scores) {
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r, scores += keys) {
    const int64_t query = visible.first_query + r / visible.group;
    const int64_t first = visible.window == 0 ? 0 : query - visible.window + 1;
    const auto begin = static_cast<size_t>(std::max<int64_t>(0, first - visible.first_key));
    const size_t seen = static_cast<size_t>(query + 1 - visible.first_key) - begin;
    float* const row = scores + begin;
    const FloatVector largest = hn::Set(d, Largest(row, seen));
    FloatVector sum = hn::Zero(d);
    ForVectors(seen, [&](size_t i, size_t count) HWY_ATTR {
      FloatVector e = ExpKeepingNaN(d, hn::Sub(LoadUpTo(d, row + i, count), largest));
      if (count < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, count), e);
      sum = hn::Add(sum, e);
      StoreUpTo(e, d, row + i, count);
    });
    const FloatVector scale = hn::Set(d, 1.0f / Sum(d, sum));
    ForVectors(seen, [&](size_t i, size_t count) HWY_ATTR {
      StoreUpTo(hn::Mul(LoadUpTo(d, row + i, count), scale), d, row + i, count);
    });
    for (size_t i = 0; i < begin; ++i) scores[i] = 0.0f;
    for (size_t i = begin + seen; i < static_cast<size_t>(keys); ++i) scores[i] = 0.0f;
  }
}

void SoftmaxBackward(const float* p, const float* dots, int64_t rows, int64_t keys, float* dp) {
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r, p += keys, dp += keys) {
    const FloatVector dot = hn::Set(d, dots[r]);
    ForVectors(static_cast<size_t>(keys), [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector difference = hn::Sub(LoadUpTo(d, dp + i, count), dot);
      StoreUpTo(hn::Mul(LoadUpTo(d, p + i, count), difference), d, dp + i, count);
    });
  }
}

float Dot(const float* a, const float* b, int64_t n) {
  const FloatTag d;
  FloatVector sum = hn::Zero(d);
  ForVectors(static_cast<size_t>(n), [&](size_t i, size_t count) HWY_ATTR {
    sum = hn::MulAdd(LoadUpTo(d, a + i, count), LoadUpTo(d, b + i, count), sum);
  });
  return Sum(d, sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {

HWY_EXPORT(CausalSoftmax);
HWY_EXPORT(SoftmaxBackward);
HWY_EXPORT(Dot);

void CausalSoftmax(const VisibleKeys& visible, int64_t rows, int64_t keys, float* scores) {
  HWY_DYNAMIC_DISPATCH(CausalSoftmax)(visible, rows, keys, scores);
}

void SoftmaxBackward(const float* p, const float* dots, int64_t rows, int64_t keys, float* dp) {
  HWY_DYNAMIC_DISPATCH(SoftmaxBackward)(p, dots, rows, keys, dp);
}

float Dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n); }

}  // namespace spillway::trainer
#endif  // HWY_ONCE
