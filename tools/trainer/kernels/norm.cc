// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width,
                    float* y, float* inverse_rms) {
  const FloatTag d;
  const size_t n = static_cast<size_t>(width);
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    FloatVector sum = hn::Zero(d);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector v = LoadUpTo(d, x + i, count);
      sum = hn::MulAdd(v, v, sum);
    });
    const float scale = 1.0f / std::sqrt(Sum(d, sum) / static_cast<float>(width) + epsilon);
    inverse_rms[r] = scale;
    const FloatVector scales = hn::Set(d, scale);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector v = hn::Mul(LoadUpTo(d, x + i, count), scales);
      StoreUpTo(hn::Mul(v, LoadUpTo(d, weight + i, count)), d, y + i, count);
    });
  }
}

// With n = x·s and g = dy·w: dx = s·(g − n·mean(g·n)), dw = Σ dy·n.
void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inverse_rms,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient) {
  const FloatTag d;
  const size_t n = static_cast<size_t>(width);
  for (int64_t r = 0; r < rows; ++r, dy += width, x += width, dx += width) {
    const FloatVector scale = hn::Set(d, inverse_rms[r]);
    FloatVector sum = hn::Zero(d);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector up = LoadUpTo(d, dy + i, count);
      const FloatVector normed = hn::Mul(LoadUpTo(d, x + i, count), scale);
      sum = hn::MulAdd(hn::Mul(up, LoadUpTo(d, weight + i, count)), normed, sum);
      StoreUpTo(hn::MulAdd(up, normed, LoadUpTo(d, weight_gradient + i, count)), d,
                weight_gradient + i, count);
    });
    const FloatVector mean = hn::Set(d, Sum(d, sum) / static_cast<float>(width));
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector g = hn::Mul(LoadUpTo(d, dy + i, count), LoadUpTo(d, weight + i, count));
      const FloatVector normed = hn::Mul(LoadUpTo(d, x + i, count), scale);
      const FloatVector gradient = hn::Mul(scale, hn::NegMulAdd(normed, mean, g));
      StoreUpTo(hn::Add(LoadUpTo(d, dx + i, count), gradient), d, dx + i, count);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {

HWY_EXPORT(RmsNormForward);
HWY_EXPORT(RmsNormBackward);

void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width,
                    float* y, float* inverse_rms) {
  HWY_DYNAMIC_DISPATCH(RmsNormForward)(x, weight, epsilon, rows, width, y, inverse_rms);
}

void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inverse_rms,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(dy, x, weight, inverse_rms, rows, width, dx,
                                        weight_gradient);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
