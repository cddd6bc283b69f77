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

// The sum of squares is of the differences from the mean: in fp32 the difference of mean squares
// would lose a variance that is small beside the mean.
void LayerNormForward(const float* x, const float* weight, const float* bias, float epsilon,
                      int64_t rows, int64_t width, float* y, float* inverse_deviations,
                      float* means) {
  const FloatTag d;
  const size_t n = static_cast<size_t>(width);
  const auto count_of_row = static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    FloatVector sum = hn::Zero(d);
    ForVectors(
        n, [&](size_t i, size_t count) HWY_ATTR { sum = hn::Add(sum, LoadUpTo(d, x + i, count)); });
    means[r] = Sum(d, sum) / count_of_row;
    const FloatVector mean = hn::Set(d, means[r]);
    FloatVector squares = hn::Zero(d);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector v = hn::Sub(LoadUpTo(d, x + i, count), mean);
      const FloatVector inside = hn::IfThenElseZero(hn::FirstN(d, count), v);
      squares = hn::MulAdd(inside, inside, squares);
    });
    inverse_deviations[r] = 1.0f / std::sqrt(Sum(d, squares) / count_of_row + epsilon);
    const FloatVector scale = hn::Set(d, inverse_deviations[r]);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector v = hn::Mul(hn::Sub(LoadUpTo(d, x + i, count), mean), scale);
      StoreUpTo(hn::MulAdd(v, LoadUpTo(d, weight + i, count), LoadUpTo(d, bias + i, count)), d,
                y + i, count);
    });
  }
}

// With n = (x − mean)·s and g = dy·w: dx = s·(g − mean(g) − n·mean(g·n)), dw = Σ dy·n, db = Σ dy.
void LayerNormBackward(const float* dy, const float* x, const float* weight,
                       const float* inverse_deviations, const float* means, int64_t rows,
                       int64_t width, float* dx, float* weight_gradient, float* bias_gradient) {
  const FloatTag d;
  const size_t n = static_cast<size_t>(width);
  const auto count_of_row = static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r, dy += width, x += width, dx += width) {
    const FloatVector scale = hn::Set(d, inverse_deviations[r]);
    const FloatVector mean = hn::Set(d, means[r]);
    FloatVector sum = hn::Zero(d), dot = hn::Zero(d);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector up = LoadUpTo(d, dy + i, count);
      const FloatVector normed = hn::Mul(hn::Sub(LoadUpTo(d, x + i, count), mean), scale);
      const FloatVector g = hn::Mul(up, LoadUpTo(d, weight + i, count));
      sum = hn::Add(sum, g);
      dot = hn::MulAdd(g, normed, dot);
      StoreUpTo(hn::MulAdd(up, normed, LoadUpTo(d, weight_gradient + i, count)), d,
                weight_gradient + i, count);
      StoreUpTo(hn::Add(up, LoadUpTo(d, bias_gradient + i, count)), d, bias_gradient + i, count);
    });
    const FloatVector mean_g = hn::Set(d, Sum(d, sum) / count_of_row);
    const FloatVector mean_dot = hn::Set(d, Sum(d, dot) / count_of_row);
    ForVectors(n, [&](size_t i, size_t count) HWY_ATTR {
      const FloatVector g = hn::Mul(LoadUpTo(d, dy + i, count), LoadUpTo(d, weight + i, count));
      const FloatVector normed = hn::Mul(hn::Sub(LoadUpTo(d, x + i, count), mean), scale);
      const FloatVector gradient =
          hn::Mul(scale, hn::NegMulAdd(normed, mean_dot, hn::Sub(g, mean_g)));
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
HWY_EXPORT(LayerNormForward);
HWY_EXPORT(LayerNormBackward);

void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t width,
                    float* y, float* inverse_rms) {
  HWY_DYNAMIC_DISPATCH(RmsNormForward)(x, weight, epsilon, rows, width, y, inverse_rms);
}

void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inverse_rms,
                     int64_t rows, int64_t width, float* dx, float* weight_gradient) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(dy, x, weight, inverse_rms, rows, width, dx,
                                        weight_gradient);
}

void LayerNormForward(const float* x, const float* weight, const float* bias, float epsilon,
                      int64_t rows, int64_t width, float* y, float* inverse_deviations,
                      float* means) {
  HWY_DYNAMIC_DISPATCH(LayerNormForward)(x, weight, bias, epsilon, rows, width, y,
                                         inverse_deviations, means);
}

void LayerNormBackward(const float* dy, const float* x, const float* weight,
                       const float* inverse_deviations, const float* means, int64_t rows,
                       int64_t width, float* dx, float* weight_gradient, float* bias_gradient) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackward)(dy, x, weight, inverse_deviations, means, rows, width, dx,
                                          weight_gradient, bias_gradient);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
