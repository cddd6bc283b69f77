// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/convert.h"

#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

// Calls vector(i) for whole vectors of [0, n) and single(i) for what is left.
template <class Vector, class Single>
HWY_INLINE void Cover(int64_t n, const Vector& vector, const Single& single) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) vector(i);
  for (; i < n; ++i) single(i);
}

void HalvesToFloats(const uint16_t* from, int64_t n, float* to) {
  const FloatTag d;
  Cover(
      n, [&](int64_t i) HWY_ATTR { hn::StoreU(LoadHalves(d, from + i), d, to + i); },
      [&](int64_t i) { to[i] = FloatFromHalf(from[i]); });
}

void FloatsToHalves(const float* from, int64_t n, uint16_t* to) {
  const FloatTag d;
  Cover(
      n, [&](int64_t i) HWY_ATTR { StoreHalves(hn::LoadU(d, from + i), d, to + i); },
      [&](int64_t i) { to[i] = HalfFromFloat(from[i]); });
}

void RoundToHalves(float* values, int64_t n) {
  const FloatTag d;
  Cover(
      n,
      [&](int64_t i)
          HWY_ATTR { hn::StoreU(RoundToHalf(d, hn::LoadU(d, values + i)), d, values + i); },
      [&](int64_t i) { values[i] = FloatFromHalf(HalfFromFloat(values[i])); });
}

void AddToFloats(const float* from, int64_t n, float* to) {
  const FloatTag d;
  Cover(
      n,
      [&](int64_t i) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
      },
      [&](int64_t i) { to[i] += from[i]; });
}

void AddToHalves(const float* from, int64_t n, uint16_t* to) {
  const FloatTag d;
  Cover(
      n,
      [&](int64_t i) HWY_ATTR {
        StoreHalves(hn::Add(LoadHalves(d, to + i), hn::LoadU(d, from + i)), d, to + i);
      },
      [&](int64_t i) { to[i] = HalfFromFloat(FloatFromHalf(to[i]) + from[i]); });
}

using DoubleTag = hn::ScalableTag<double>;

// Four running sums hide the latency of the additions.
double SumOfSquaresFloats(const float* values, int64_t n) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> d_float;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  const auto square = [&](int64_t i, hn::Vec<DoubleTag> sum) HWY_ATTR {
    const auto v = hn::PromoteTo(d, hn::LoadU(d_float, values + i));
    return hn::MulAdd(v, v, sum);
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = square(i, sum0);
    sum1 = square(i + lanes, sum1);
    sum2 = square(i + 2 * lanes, sum2);
    sum3 = square(i + 3 * lanes, sum3);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < n; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

double SumOfSquaresHalves(const uint16_t* values, int64_t n) {
  constexpr int64_t kPiece = 1024;
  HWY_ALIGN float floats[kPiece];
  double total = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = HWY_MIN(kPiece, n - i);
    HalvesToFloats(values + i, count, floats);
    total += SumOfSquaresFloats(floats, count);
  }
  return total;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {

HWY_EXPORT(HalvesToFloats);
HWY_EXPORT(FloatsToHalves);
HWY_EXPORT(RoundToHalves);
HWY_EXPORT(AddToFloats);
HWY_EXPORT(AddToHalves);
HWY_EXPORT(SumOfSquaresFloats);
HWY_EXPORT(SumOfSquaresHalves);

void HalvesToFloats(const uint16_t* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(HalvesToFloats)(from, n, to);
}

void FloatsToHalves(const float* from, int64_t n, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(FloatsToHalves)(from, n, to);
}

void RoundToHalves(float* values, int64_t n) { HWY_DYNAMIC_DISPATCH(RoundToHalves)(values, n); }

void AddToFloats(const float* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(AddToFloats)(from, n, to);
}

void AddToHalves(const float* from, int64_t n, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(AddToHalves)(from, n, to);
}

double SumOfSquares(const float* values, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresFloats)(values, n);
}

double SumOfSquares(const uint16_t* values, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresHalves)(values, n);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
