// SPDX-License-Identifier: Apache-2.0
//
// RMS norm and layer norm with their gradients, against double precision.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/norms.h"

namespace spillway::trainer::gpu {
namespace {

// A norm's inputs and its exact results, row by row.
struct NormCase {
  int64_t rows, width;
  double epsilon;
  bool is_centered;
  Values x, scale, shift, dy, dx;
  Exact inverse, mean, y, new_dx, scale_gradient, shift_gradient;
  double largest_term = 0;  // of the sums new_dx

  void Compute() {
    const auto n = static_cast<size_t>(width);
    scale_gradient.assign(n, 0);
    shift_gradient.assign(n, 0);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const float* const of_x = x.data() + row * n;
      double sum = 0, squares = 0;
      for (size_t i = 0; i < n; ++i) sum += static_cast<double>(of_x[i]);
      mean.push_back(is_centered ? sum / static_cast<double>(width) : 0);
      for (size_t i = 0; i < n; ++i) squares += std::pow(of_x[i] - mean[row], 2);
      inverse.push_back(1 / std::sqrt(squares / static_cast<double>(width) + epsilon));
      double of_g = 0, of_dot = 0;
      const auto normed = [&](size_t i) { return (of_x[i] - mean[row]) * inverse[row]; };
      const auto g = [&](size_t i) { return static_cast<double>(dy[row * n + i]) * scale[i]; };
      for (size_t i = 0; i < n; ++i) {
        y.push_back(normed(i) * scale[i] + (is_centered ? shift[i] : 0));
        of_g += is_centered ? g(i) : 0;
        of_dot += g(i) * normed(i);
        scale_gradient[i] += dy[row * n + i] * normed(i);
        shift_gradient[i] += dy[row * n + i];
      }
      for (size_t i = 0; i < n; ++i) {
        const double mean_of_g = of_g / static_cast<double>(width);
        const double mean_of_dot = of_dot / static_cast<double>(width);
        new_dx.push_back(dx[row * n + i] +
                         inverse[row] * (g(i) - mean_of_g - normed(i) * mean_of_dot));
        for (const double term : {g(i), mean_of_g, normed(i) * mean_of_dot})
          largest_term = std::max(largest_term, inverse[row] * std::fabs(term));
      }
    }
  }
};

class ComputeNorms : public EachMachine {
 protected:
  // Activations have `type`; sums, scale and shift are fp32.
  template <bool kCentered>
  void Check(DType type, int64_t rows, int64_t width, float offset) {
    SCOPED_TRACE(testing::Message() << Name(type) << ", " << rows << " rows of " << width);
    NormCase norm = {.rows = rows,
                     .width = width,
                     .epsilon = static_cast<double>(1e-5f),
                     .is_centered = kCentered,
                     .scale = Random(width),
                     .shift = Random(width)};
    norm.x = Random(rows * width, 2);
    for (float& value : norm.x) value += offset;
    norm.x = Rounded(type, norm.x);
    norm.dy = Rounded(type, Random(rows * width));
    norm.dx = Random(rows * width);
    norm.Compute();

    const View x = Put(type, rows, width, norm.x, /*padding=*/3);
    const View dy = Put(type, rows, width, norm.dy, /*padding=*/1);
    const View dx = Put(DType::kF32, rows, width, norm.dx, /*padding=*/2);
    const View y = Undefined(type, rows, width, /*padding=*/4);
    const View scale = Put(DType::kF32, 1, width, norm.scale);
    const View shift = Put(DType::kF32, 1, width, norm.shift);
    const View stats = Undefined(DType::kF32, 2, rows);
    Launch(Norm<kCentered>{1e-5f, MatrixOf(x), MatrixOf(scale), MatrixOf(shift), MatrixOf(stats),
                           MatrixOf(y)});
    const double tolerance = offset == 0 ? 2e-6 : 2e-4;
    ExpectNear(y, norm.y, tolerance);
    ExpectNear(stats.Rows(0, 1), norm.inverse);
    if (kCentered) ExpectNear(stats.Rows(1, 1), norm.mean);

    Launch(NormGradient<kCentered>{MatrixOf(x), MatrixOf(scale), MatrixOf(stats), MatrixOf(dy),
                                   MatrixOf(dx)});
    ExpectNear(dx, norm.new_dx, tolerance, norm.largest_term);
    // Into the views of scale and shift.
    Launch(ScaleGradient<kCentered>{
        {MatrixOf(x), MatrixOf(stats), MatrixOf(dy), MatrixOf(scale), MatrixOf(shift)}});
    ExpectNear(scale, norm.scale_gradient, tolerance);
    if (kCentered) ExpectNear(shift, norm.shift_gradient);
  }
};

TEST_P(ComputeNorms, RmsNormAndItsGradients) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) Check<false>(type, 5, 577, 0);
  for (const int64_t width : {1, 7, 256, 257}) Check<false>(DType::kF32, 1, width, 0);
  Check<false>(DType::kBF16, 37, 33, 0);
}

TEST_P(ComputeNorms, LayerNormAndItsGradients) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) Check<true>(type, 5, 577, 0);
  for (const int64_t width : {2, 7, 256, 257}) Check<true>(DType::kF32, 1, width, 0);
  Check<true>(DType::kBF16, 37, 33, 0);
}

// In fp32, the difference of mean squares would lose the variance.
TEST_P(ComputeNorms, LayerNormKeepsAVarianceThatIsSmallBesideTheMean) {
  Check<true>(DType::kF32, 2, 300, 1000);
}

TEST_P(ComputeNorms, NaNAndInfinityShowInTheirRow) {
  const int64_t width = 300;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Values values = Random(2 * width);
    values[static_cast<size_t>(width) + 299] = bad;
    const View x = Put(DType::kF32, 2, width, values);
    const View ones = Put(DType::kF32, 1, width, Values(static_cast<size_t>(width), 1.0f));
    const View stats = Undefined(DType::kF32, 2, 2);
    const View y = Undefined(DType::kF32, 2, width);
    const auto check = [&](const View& of) {
      const Values got = Get(of);
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) ASSERT_TRUE(std::isfinite(got[i]));
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(width) + 299]));
    };
    Launch(Norm<false>{1e-5f, MatrixOf(x), MatrixOf(ones), MatrixOf(ones), MatrixOf(stats),
                       MatrixOf(y)});
    check(y);
    Launch(Norm<true>{1e-5f, MatrixOf(x), MatrixOf(ones), MatrixOf(ones), MatrixOf(stats),
                      MatrixOf(y)});
    check(y);
    const View dx = Put(DType::kF32, 2, width, Values(static_cast<size_t>(2 * width)));
    Launch(NormGradient<true>{MatrixOf(x), MatrixOf(ones), MatrixOf(stats), MatrixOf(x),
                              MatrixOf(dx)});
    check(dx);
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeNorms);

}  // namespace
}  // namespace spillway::trainer::gpu
