// SPDX-License-Identifier: Apache-2.0
//
// Tests each kernel against a plain double-precision computation of its result, on every
// instruction set that the machine has, at sizes that leave partial vectors.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

#include "spillway/thread_pool.h"
#include "tests/trainer/each_target.h"
#include "tools/trainer/kernels/cross_entropy.h"
#include "tools/trainer/kernels/elementwise.h"
#include "tools/trainer/kernels/gemm.h"
#include "tools/trainer/kernels/norm.h"
#include "tools/trainer/kernels/rope.h"
#include "tools/trainer/kernels/softmax.h"

namespace spillway::trainer {
namespace {

using Kernels = EachTarget;

TEST_P(Kernels, SwigluAndItsGradient) {
  constexpr size_t kN = 77;
  std::vector<float> gate = Random(kN, 4, 4.0f);
  std::vector<float> up = Random(kN, 5);
  gate[0] = -200.0f;
  gate[1] = 200.0f;
  gate[2] = 0.0f;
  std::vector<float> out(kN);
  SwigluForward(gate.data(), up.data(), kN, out.data());
  const std::vector<float> gradient = Random(kN, 6);
  std::vector<float> dgate = gate, dup = up, again = gradient;
  SwigluBackward(kN, dgate.data(), dup.data(), again.data());
  for (size_t i = 0; i < kN; ++i) {
    const double g = gate[i], s = 1 / (1 + std::exp(-g)), u = up[i], d = gradient[i];
    EXPECT_NEAR(out[i], g * s * u, 1e-6 * (1 + std::fabs(g * u)));
    EXPECT_NEAR(dgate[i], d * u * s * (1 + g * (1 - s)), 1e-6 * (1 + std::fabs(d * u * g)));
    EXPECT_NEAR(dup[i], d * g * s, 1e-6 * (1 + std::fabs(d * g)));
    EXPECT_EQ(std::bit_cast<uint32_t>(again[i]), std::bit_cast<uint32_t>(out[i]));
  }
}

// The derivative is taken in double precision from the same formula.
TEST_P(Kernels, GeluAndItsGradient) {
  constexpr size_t kN = 77;
  std::vector<float> up = Random(kN, 4, 3.0f);
  const std::vector<float> far = {-3e38f, -1e20f, -40, -30, -9, 0, 9, 30, 40, 1e20f, 3e38f};
  std::copy(far.begin(), far.end(), up.begin());
  std::vector<float> out(kN);
  GeluForward(up.data(), kN, out.data());
  const std::vector<float> gradient = Random(kN, 6);
  std::vector<float> dup = up, again = gradient;
  GeluBackward(kN, dup.data(), again.data());
  for (size_t i = 0; i < kN; ++i) {
    const double x = up[i], root = std::sqrt(2 / std::numbers::pi);
    const double t = std::tanh(root * (x + 0.044715 * x * x * x));
    const double slope =
        (1 + t) / 2 +
        (std::fabs(x) > 1e3 ? 0 : x * (1 - t * t) / 2 * root * (1 + 3 * 0.044715 * x * x));
    EXPECT_NEAR(out[i], x * (1 + t) / 2, 1e-6 * (1 + (x > 0 ? x : 0))) << x;
    EXPECT_NEAR(dup[i], gradient[i] * slope, 2e-6 * (1 + std::fabs(gradient[i]))) << x;
    EXPECT_EQ(std::bit_cast<uint32_t>(again[i]), std::bit_cast<uint32_t>(out[i]));
  }
}

TEST_P(Kernels, NaNComesThrough) {
  std::vector<float> gate(20, 1.0f), up(20, 1.0f), out(20);
  gate[3] = gate[18] = kNaN;
  up[5] = kInfinity;
  SwigluForward(gate.data(), up.data(), 20, out.data());
  EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[18]) && std::isinf(out[5]));
  EXPECT_FALSE(std::isnan(out[4]));
  up[7] = kNaN;
  up[9] = -kInfinity;
  GeluForward(up.data(), 20, out.data());
  EXPECT_TRUE(std::isnan(out[7]) && std::isinf(out[5]) && std::isnan(out[9]));
  EXPECT_FALSE(std::isnan(out[8]));
  GeluBackward(20, up.data(), out.data());
  EXPECT_TRUE(std::isnan(up[7]) && std::isnan(out[7]));

  std::vector<float> scores(40, 0.5f);
  scores[7] = kNaN;
  CausalSoftmax({.first_query = 19, .group = 2}, 2, 20, scores.data());
  EXPECT_TRUE(std::isnan(scores[0]) && std::isnan(scores[19]));
  EXPECT_NEAR(scores[20], 0.05f, 1e-7f);

  std::vector<float> logits(60, 0.25f);
  logits[22] = kNaN;       // token 1
  logits[59] = kInfinity;  // token 2
  const std::vector<int32_t> targets = {1, 1, 1};
  std::vector<OnlineSoftmax> states(3);
  GatherSoftmax(logits.data(), 3, 0, 20, targets.data(), states.data());
  EXPECT_NEAR(states[0].Loss(), std::log(20.0), 1e-6);
  EXPECT_TRUE(std::isnan(states[1].Loss()));
  EXPECT_FALSE(std::isfinite(states[2].Loss()));
  CrossEntropyBackward(logits.data(), 3, 0, 20, targets.data(), states.data(), 1.0f, logits.data());
  EXPECT_TRUE(std::isnan(logits[20]));
  EXPECT_TRUE(std::isnan(logits[59]));
}

TEST_P(Kernels, RmsNormAndItsGradient) {
  constexpr int64_t kRows = 3, kWidth = 37;
  const std::vector<float> x = Random(kRows * kWidth, 7), w = Random(kWidth, 8),
                           dy = Random(kRows * kWidth, 9);
  std::vector<float> y(x.size()), inverse(kRows), dx(x.size(), 1.0f), dw(kWidth, 0.0f);
  RmsNormForward(x.data(), w.data(), 1e-5f, kRows, kWidth, y.data(), inverse.data());
  RmsNormBackward(dy.data(), x.data(), w.data(), inverse.data(), kRows, kWidth, dx.data(),
                  dw.data());
  std::vector<double> expected_dw(kWidth);
  for (size_t r = 0; r < kRows; ++r) {
    const size_t at = r * kWidth;
    double mean = 0, dot = 0;
    for (size_t i = 0; i < kWidth; ++i) mean += static_cast<double>(x[at + i]) * x[at + i] / kWidth;
    const double s = 1 / std::sqrt(mean + 1e-5);
    for (size_t i = 0; i < kWidth; ++i) dot += dy[at + i] * w[i] * x[at + i] * s / kWidth;
    for (size_t i = 0; i < kWidth; ++i) {
      EXPECT_NEAR(y[at + i], w[i] * x[at + i] * s, 1e-5);
      EXPECT_NEAR(dx[at + i], 1 + s * (dy[at + i] * w[i] - x[at + i] * s * dot), 1e-5);
      expected_dw[i] += dy[at + i] * x[at + i] * s;
    }
  }
  for (size_t i = 0; i < kWidth; ++i) EXPECT_NEAR(dw[i], expected_dw[i], 1e-5);
}

// The rows lie far from zero beside their deviation, which a difference of mean squares would lose.
TEST_P(Kernels, LayerNormAndItsGradient) {
  constexpr int64_t kRows = 3, kWidth = 37;
  std::vector<float> x = Random(kRows * kWidth, 7);
  for (float& value : x) value += 300.0f;
  const std::vector<float> w = Random(kWidth, 8), b = Random(kWidth, 10),
                           dy = Random(kRows * kWidth, 9);
  std::vector<float> y(x.size()), inverse(kRows), means(kRows), dx(x.size(), 1.0f),
      dw(kWidth, 0.0f), db(kWidth, 0.0f);
  LayerNormForward(x.data(), w.data(), b.data(), 1e-5f, kRows, kWidth, y.data(), inverse.data(),
                   means.data());
  LayerNormBackward(dy.data(), x.data(), w.data(), inverse.data(), means.data(), kRows, kWidth,
                    dx.data(), dw.data(), db.data());
  std::vector<double> expected_dw(kWidth), expected_db(kWidth);
  for (size_t r = 0; r < kRows; ++r) {
    const size_t at = r * kWidth;
    double mean = 0, variance = 0, sum = 0, dot = 0;
    for (size_t i = 0; i < kWidth; ++i) mean += double{x[at + i]} / kWidth;
    for (size_t i = 0; i < kWidth; ++i) variance += std::pow(x[at + i] - mean, 2) / kWidth;
    const double s = 1 / std::sqrt(variance + 1e-5);
    for (size_t i = 0; i < kWidth; ++i) {
      sum += double{dy[at + i]} * w[i] / kWidth;
      dot += double{dy[at + i]} * w[i] * (x[at + i] - mean) * s / kWidth;
    }
    for (size_t i = 0; i < kWidth; ++i) {
      const double normed = (x[at + i] - mean) * s;
      EXPECT_NEAR(y[at + i], w[i] * normed + b[i], 2e-4);
      EXPECT_NEAR(dx[at + i], 1 + s * (dy[at + i] * w[i] - sum - normed * dot), 2e-4);
      expected_dw[i] += dy[at + i] * normed;
      expected_db[i] += dy[at + i];
    }
  }
  for (size_t i = 0; i < kWidth; ++i) {
    EXPECT_NEAR(dw[i], expected_dw[i], 2e-4);
    EXPECT_NEAR(db[i], expected_db[i], 1e-5);
  }
}

TEST_P(Kernels, RopeTurnsAndTurnsBack) {
  constexpr int64_t kLength = 5, kHeads = 3, kDim = 14, kRows = 10;
  std::vector<float> cosines(kLength * kDim / 2), sines(cosines.size());
  std::vector<float> frequencies;
  for (int j = 0; j < kDim / 2; ++j)
    frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / kDim)));
  FillRopeTables(frequencies, kLength, cosines.data(), sines.data());
  const RopeTables tables = {cosines.data(), sines.data()};
  const std::vector<float> x = Random(kRows * kHeads * kDim, 10);
  std::vector<float> turned = x;
  const HeadRows<float> rows = {turned.data(), kHeads * kDim, kDim};
  RopeForward(tables, kLength, kHeads, kDim, 0, 4, rows);
  RopeForward(tables, kLength, kHeads, kDim, 4, kRows, rows);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t i = 0; i < kHeads * kDim; ++i) {
      const size_t j = i % kDim, pair = j % 7;
      const double angle = static_cast<double>(r % kLength) *
                           std::pow(10000.0, -2.0 * static_cast<double>(pair) / 14);
      const double other = j < 7 ? -x[r * 42 + i + 7] : x[r * 42 + i - 7];
      EXPECT_NEAR(turned[r * 42 + i], x[r * 42 + i] * std::cos(angle) + other * std::sin(angle),
                  1e-5);
    }
  }
  RopeBackward(tables, kLength, kHeads, kDim, 0, kRows, rows);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(turned[i], x[i], 1e-5);
}

TEST_P(Kernels, CrossEntropyOverTilesIsThatOfTheWhole) {
  constexpr int64_t kTokens = 3, kFirst = 29, kSecond = 18;
  const std::vector<float> first = Random(kTokens * kFirst, 11, 3.0f);
  std::vector<float> second = Random(kTokens * kSecond, 12, 3.0f);
  second[5] = 60.0f;  // token 0 has its largest logit in the second tile
  const std::vector<int32_t> targets = {2, 28, 40};
  std::vector<OnlineSoftmax> states(kTokens);
  GatherSoftmax(first.data(), kTokens, 0, kFirst, targets.data(), states.data());
  GatherSoftmax(second.data(), kTokens, kFirst, kSecond, targets.data(), states.data());
  std::vector<float> d_first(first.size()), d_second(second.size());
  CrossEntropyBackward(first.data(), kTokens, 0, kFirst, targets.data(), states.data(), 8.0f,
                       d_first.data());
  CrossEntropyBackward(second.data(), kTokens, kFirst, kSecond, targets.data(), states.data(), 8.0f,
                       d_second.data());
  for (size_t t = 0; t < kTokens; ++t) {
    const auto logit = [&](size_t v) {
      return double{v < kFirst ? first[t * kFirst + v] : second[t * kSecond + v - kFirst]};
    };
    double sum = 0;
    for (size_t v = 0; v < kFirst + kSecond; ++v) sum += std::exp(logit(v));
    const size_t target = static_cast<size_t>(targets[t]);
    EXPECT_NEAR(states[t].Loss(), std::log(sum) - logit(target), 1e-5);
    for (size_t v = 0; v < kFirst + kSecond; ++v) {
      const float got = v < kFirst ? d_first[t * kFirst + v] : d_second[t * kSecond + v - kFirst];
      EXPECT_NEAR(got, 8 * (std::exp(logit(v)) / sum - (v == target ? 1 : 0)), 2e-5)
          << t << " " << v;
    }
  }
}

TEST_P(Kernels, SoftmaxRowsStopAtTheirQuery) {
  constexpr int64_t kGroup = 2, kKeys = 21, kRows = 6;
  const std::vector<float> scores = Random(kRows * kKeys, 13, 5.0f);
  std::vector<float> p = scores;
  CausalSoftmax({.first_query = 18, .group = kGroup}, kRows, kKeys, p.data());
  for (size_t r = 0; r < kRows; ++r) {
    const size_t seen = 19 + r / kGroup;
    double sum = 0;
    for (size_t k = 0; k < seen; ++k) sum += std::exp(double{scores[r * kKeys + k]});
    for (size_t k = 0; k < kKeys; ++k) {
      const double expected = k < seen ? std::exp(double{scores[r * kKeys + k]}) / sum : 0;
      EXPECT_NEAR(p[r * kKeys + k], expected, 1e-6);
    }
  }
  std::vector<float> dp = scores;
  const std::vector<float> dots = Random(kRows, 14);
  SoftmaxBackward(p.data(), dots.data(), kRows, kKeys, dp.data());
  for (size_t i = 0; i < dp.size(); ++i) {
    EXPECT_NEAR(dp[i], p[i] * (scores[i] - dots[i / kKeys]), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Kernels, TargetsHere(), NameOfTarget);

TEST(Gemm, EveryTranspositionAndThreadCountGivesTheProduct) {
  constexpr int64_t kRows = 45, kColumns = 70, kInner = 19;
  const std::vector<float> a = Random(kRows * kInner, 15), b = Random(kInner * kColumns, 16);
  const std::vector<float> start = Random(kRows * kColumns, 17);
  ASSERT_TRUE(LoadBlas(7).ok());
  for (int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    for (bool a_turned : {false, true}) {
      for (bool b_turned : {false, true}) {
        for (Into into : {Into::kOverwrite, Into::kAdd}) {
          std::vector<float> c = start;
          ParallelMultiply(
              &pool, {kRows, kColumns, kInner}, {a.data(), a_turned ? kRows : kInner, a_turned},
              {b.data(), b_turned ? kInner : kColumns, b_turned}, into, c.data(), kColumns);
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t n = 0; n < kColumns; ++n) {
              const auto at = static_cast<size_t>(r * kColumns + n);
              double expected = into == Into::kAdd ? start[at] : 0;
              for (int64_t k = 0; k < kInner; ++k) {
                expected += static_cast<double>(
                                a[static_cast<size_t>(a_turned ? k * kRows + r : r * kInner + k)]) *
                            b[static_cast<size_t>(b_turned ? n * kInner + k : k * kColumns + n)];
              }
              ASSERT_NEAR(c[at], expected, 1e-4);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::trainer
