// SPDX-License-Identifier: Apache-2.0
//
// Each kernel against a plain double-precision statement of what it computes, on every instruction
// set that the machine has, at sizes that leave partial vectors.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hwy/targets.h"
#include "spillway/thread_pool.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/kernels/cross_entropy.h"
#include "tools/trainer/kernels/elementwise.h"
#include "tools/trainer/kernels/gemm.h"
#include "tools/trainer/kernels/half.h"
#include "tools/trainer/kernels/norm.h"
#include "tools/trainer/kernels/rope.h"
#include "tools/trainer/kernels/softmax.h"

namespace spillway::trainer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Random(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Runs each test on one instruction set.
class Kernels : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Kernels, EveryHalfSurvivesTheRoundTrip) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(halves.size());
  HalvesToFloats(halves.data(), 65536, floats.data());
  std::vector<uint16_t> back(halves.size());
  FloatsToHalves(floats.data(), 65536, back.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    if ((i & 0x7FFF) > 0x7C00) {
      ASSERT_TRUE(std::isnan(floats[i])) << i;
      ASSERT_GT(back[i] & 0x7FFF, 0x7C00) << i;
    } else {
      ASSERT_EQ(back[i], halves[i]);
      ASSERT_EQ(floats[i], FloatFromHalf(halves[i]));
    }
  }
}

TEST_P(Kernels, FloatsGoToTheNearestHalfAndTiesToEven) {
  std::vector<float> floats = {
      0.0f,     -0.0f,       65504.0f,     65519.996f,    65520.0f,        -65520.0f,
      1e30f,    kInfinity,   -kInfinity,   0x1p-24f,      0x1p-25f,        0x1.8p-25f,
      0x1p-26f, -0x1.4p-24f, 0x1.ffep-15f, 0x1.ffffp-15f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f};
  // Halfway between neighbours, and a bit to each side, over the whole range.
  for (uint16_t half = 0; half < 0x7BFF; half = static_cast<uint16_t>(half + 37)) {
    const float middle = (FloatFromHalf(half) + FloatFromHalf(static_cast<uint16_t>(half + 1))) / 2;
    for (float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)}) {
      floats.push_back(value);
      floats.push_back(-value);
    }
  }
  std::vector<uint16_t> halves(floats.size());
  FloatsToHalves(floats.data(), static_cast<int64_t>(floats.size()), halves.data());
  std::vector<float> rounded = floats;
  RoundToHalves(rounded.data(), static_cast<int64_t>(rounded.size()));
  for (size_t i = 0; i < floats.size(); ++i) {
    const float value = floats[i];
    const float got = FloatFromHalf(halves[i]);
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(rounded[i])) << value;
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
    if (std::fabs(value) >= 65520.0f) {
      ASSERT_TRUE(std::isinf(got)) << value;
      continue;
    }
    // No neighbour is nearer, and at equal distance the even one was taken.
    const auto magnitude = static_cast<uint16_t>(halves[i] & 0x7FFF);
    const double error = std::fabs(std::fabs(double{value}) - FloatFromHalf(magnitude));
    for (int step : {-1, 1}) {
      if (magnitude + step < 0 || magnitude + step >= 0x7C00) continue;
      const float other = FloatFromHalf(static_cast<uint16_t>(magnitude + step));
      const double other_error = std::fabs(std::fabs(double{value}) - other);
      ASSERT_LE(error, other_error) << value;
      if (error == other_error) {
        ASSERT_EQ(magnitude & 1, 0) << value;
      }
    }
  }
}

TEST_P(Kernels, AddsRoundOnce) {
  constexpr int64_t kN = 101;
  const std::vector<float> a = Random(kN, 1), b = Random(kN, 2, 1e-3f);
  std::vector<uint16_t> halves(kN);
  FloatsToHalves(a.data(), kN, halves.data());
  std::vector<float> floats = a;
  std::vector<uint16_t> sums = halves;
  AddToHalves(b.data(), kN, sums.data());
  AddToFloats(b.data(), kN, floats.data());
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_EQ(sums[i], HalfFromFloat(FloatFromHalf(halves[i]) + b[i]));
    EXPECT_EQ(floats[i], a[i] + b[i]);
  }
}

TEST_P(Kernels, SumsOfSquaresAreExactEnoughAndShowWhatIsNotFinite) {
  for (int64_t n : {0, 1, 31, 64, 1024, 4099}) {
    std::vector<float> values = Random(static_cast<size_t>(n), 3, 100.0f);
    double expected = 0;
    for (float v : values) expected += static_cast<double>(v) * v;
    EXPECT_NEAR(SumOfSquares(values.data(), n), expected, 1e-13 * expected);
    std::vector<uint16_t> halves(values.size());
    FloatsToHalves(values.data(), n, halves.data());
    expected = 0;
    for (uint16_t h : halves) expected += static_cast<double>(FloatFromHalf(h)) * FloatFromHalf(h);
    EXPECT_NEAR(SumOfSquares(halves.data(), n), expected, 1e-13 * expected);
    for (size_t bad = 0; bad < values.size(); bad += 97) {
      for (float poison : {kInfinity, kNaN}) {
        const float kept = std::exchange(values[bad], poison);
        EXPECT_FALSE(std::isfinite(SumOfSquares(values.data(), n)));
        values[bad] = kept;
      }
    }
  }
  const std::vector<float> largest(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(SumOfSquares(largest.data(), 100)));
}

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

TEST_P(Kernels, NaNComesThrough) {
  std::vector<float> gate(20, 1.0f), up(20, 1.0f), out(20);
  gate[3] = gate[18] = kNaN;
  up[5] = kInfinity;
  SwigluForward(gate.data(), up.data(), 20, out.data());
  EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[18]) && std::isinf(out[5]));
  EXPECT_FALSE(std::isnan(out[4]));

  std::vector<float> scores(40, 0.5f);
  scores[7] = kNaN;
  CausalSoftmax(19, 2, 2, 20, scores.data());
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

TEST_P(Kernels, RopeTurnsAndTurnsBack) {
  constexpr int64_t kLength = 5, kHeads = 3, kDim = 14, kRows = 10;
  std::vector<float> cosines(kLength * kDim / 2), sines(cosines.size());
  FillRopeTables(10000, kDim, kLength, cosines.data(), sines.data());
  const RopeTables tables = {cosines.data(), sines.data()};
  const std::vector<float> x = Random(kRows * kHeads * kDim, 10);
  std::vector<float> turned = x;
  RopeForward(tables, kLength, kHeads, kDim, 0, 4, turned.data());
  RopeForward(tables, kLength, kHeads, kDim, 4, kRows, turned.data());
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
  RopeBackward(tables, kLength, kHeads, kDim, 0, kRows, turned.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(turned[i], x[i], 1e-5);
}

TEST_P(Kernels, CrossEntropyOverTilesIsThatOfTheWhole) {
  constexpr int64_t kTokens = 3, kFirst = 29, kSecond = 18;
  const std::vector<float> first = Random(kTokens * kFirst, 11, 3.0f);
  std::vector<float> second = Random(kTokens * kSecond, 12, 3.0f);
  second[5] = 60.0f;  // the largest comes in the second tile
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
  CausalSoftmax(18, kGroup, kRows, kKeys, p.data());
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

INSTANTIATE_TEST_SUITE_P(Targets, Kernels, testing::ValuesIn([] {
                           std::vector<int64_t> targets;
                           int64_t left = hwy::SupportedTargets() & HWY_TARGETS;
                           for (; left != 0; left &= left - 1) targets.push_back(left & -left);
                           return targets;
                         }()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

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
