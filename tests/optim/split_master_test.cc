// SPDX-License-Identifier: Apache-2.0
//
// Tests the split of master weights for compact state: it gives the reference's bits on every
// instruction set, keeps values near the originals, has no bias, and keeps finite values finite.

#include "src/optim/split_master.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/optim/element_codecs.h"
#include "tests/optim/compact_reference.h"
#include "tests/optim/rule_reference.h"
#include "tests/seed.h"

namespace spillway::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

bool IsSame(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<float> Joined(DType dtype, const std::vector<uint16_t>& weights,
                          const std::vector<uint8_t>& residuals) {
  std::vector<float> masters(weights.size());
  DecodeMasters(dtype, weights.data(), residuals.data(), static_cast<int64_t>(weights.size()),
                masters.data());
  return masters;
}

struct Split {
  std::vector<uint16_t> weights;
  std::vector<uint8_t> residuals;
};
Split SplitOf(DType dtype, const std::vector<float>& masters, const std::vector<uint32_t>& words) {
  Split split = {std::vector<uint16_t>(masters.size()), std::vector<uint8_t>(masters.size())};
  EncodeMasters(dtype, masters.data(), words.data(), static_cast<int64_t>(masters.size()),
                split.weights.data(), split.residuals.data());
  return split;
}

std::vector<uint32_t> WordsOf(size_t n, uint64_t key, uint64_t first = 0) {
  std::vector<uint32_t> words(n);
  FillRandomWords(key, first, static_cast<int64_t>(n), words.data());
  return words;
}

// Returns values of every exponent, and values around the limits of the types.
std::vector<float> ManyMasters(std::mt19937_64& random) {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               kInfinity,
                               -kInfinity,
                               kNaN,
                               -kNaN,
                               65504.0F,
                               65519.9F,
                               65520.0F,
                               -65536.0F,
                               1e38F,
                               3.4028e38F,
                               -3.39e38F,
                               6.1035e-5F,
                               6.1e-5F,
                               5.9e-8F,
                               2e-10F,
                               1e-45F,
                               std::numeric_limits<float>::max(),
                               0x1.0p-17F,
                               0x1.fffffep-15F};
  for (int i = 0; i < 20000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  std::normal_distribution<float> normal;
  for (int i = 0; i < 20000; ++i)
    values.push_back(normal(random) * std::exp2(static_cast<float>(random() % 48) - 44));
  return values;
}

// Runs on each instruction set of this machine, by restricting dispatch to it.
class SplitMasters : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  std::mt19937_64 random_{test::Seed()};
};

TEST_P(SplitMasters, JoinEveryWeightWithEveryResidualAsTheReferenceDoes) {
  for (const DType dtype : kHalves) {
    for (int residual = -128; residual < 128; ++residual) {
      std::vector<uint16_t> weights(65536);
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<uint16_t>(i);
      const std::vector<uint8_t> residuals(weights.size(), static_cast<uint8_t>(residual));
      const std::vector<float> masters = Joined(dtype, weights, residuals);
      for (size_t i = 0; i < weights.size(); ++i) {
        const float expected = ReferenceJoin(dtype, {weights[i], static_cast<int8_t>(residual)});
        ASSERT_TRUE(IsSame(masters[i], expected))
            << i << " " << residual << ": " << masters[i] << ", not " << expected;
      }
    }
  }
}

TEST_P(SplitMasters, SplitMastersAsTheReferenceDoes) {
  const std::vector<float> masters = ManyMasters(random_);
  std::vector<uint32_t> words = WordsOf(masters.size(), random_());
  for (size_t i = 0; i < words.size(); i += 5) words[i] = kNearestWord;
  for (const DType dtype : kHalves) {
    const Split split = SplitOf(dtype, masters, words);
    for (size_t i = 0; i < masters.size(); ++i) {
      const SplitMaster expected = ReferenceSplit(dtype, masters[i], words[i]);
      ASSERT_EQ(split.weights[i], expected.weight) << masters[i];
      ASSERT_EQ(static_cast<int8_t>(split.residuals[i]), expected.residual) << masters[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, SplitMasters,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

TEST(SplitMaster, AreWithinHalfAStepOfA256thOfTheLastPlaceAndTheWeightIsTheNearest) {
  std::mt19937_64 random(test::Seed());
  std::normal_distribution<float> normal;
  std::vector<float> masters(20000);
  for (float& master : masters)
    master = normal(random) * std::exp2(static_cast<float>(random() % 20) - 14);
  const std::vector<uint32_t> nearest(masters.size(), kNearestWord);
  for (const DType dtype : kHalves) {
    const Split split = SplitOf(dtype, masters, nearest);
    const std::vector<float> joined = Joined(dtype, split.weights, split.residuals);
    for (size_t i = 0; i < masters.size(); ++i) {
      const int bits = dtype == DType::kF16 ? 10 : 7;
      const int exponent = std::ilogb(masters[i]);
      const double place =
          std::ldexp(1.0, (dtype == DType::kF16 ? std::max(exponent, -14) : exponent) - bits);
      // A denormal fp16 number is first rounded to 32nds of a residual's step.
      const bool is_denormal = dtype == DType::kF16 && exponent < -14;
      const double most = (is_denormal ? 33 : 32) * place / (32 * 512);
      ASSERT_LE(std::fabs(double{joined[i]} - masters[i]), most) << masters[i];
      // A residual of -128 is a tie, which splitting rounds away from zero. It is skipped.
      const uint16_t rounded =
          dtype == DType::kF16 ? HalfOfFloat(joined[i]) : Bf16OfFloat(joined[i]);
      if (split.residuals[i] != 0x80) {
        ASSERT_EQ(split.weights[i], rounded) << masters[i];
      }
    }
  }
}

TEST(SplitMaster, ThatWereJoinedSplitTheSameWay) {
  std::mt19937_64 random(test::Seed());
  for (const DType dtype : kHalves) {
    std::vector<uint16_t> weights(65536);
    std::vector<uint8_t> residuals(65536);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<uint16_t>(i);
      residuals[i] = static_cast<uint8_t>(random());
    }
    const std::vector<float> once = Joined(dtype, weights, residuals);
    for (const uint64_t key : {1, 2, 3}) {
      const Split split = SplitOf(dtype, once, WordsOf(once.size(), key));
      const std::vector<float> again = Joined(dtype, split.weights, split.residuals);
      for (size_t i = 0; i < once.size(); ++i)
        ASSERT_TRUE(IsSame(once[i], again[i])) << i << " " << int{residuals[i]};
    }
  }
}

TEST(SplitMaster, KeepTheMean) {
  constexpr int kTimes = 40000;
  for (const DType dtype : kHalves) {
    for (const float base : {1.0F, -0.02F, 0x1.4p-20F}) {
      // A residual's step. Values lie a part of it past `start`, which is represented exactly.
      const double step = dtype == DType::kBF16          ? std::ldexp(1.0, std::ilogb(base) - 15)
                          : std::fabs(base) < 0x1.0p-14F ? 0x1.0p-32
                                                         : std::ldexp(1.0, std::ilogb(base) - 18);
      const Split split = SplitOf(dtype, {base}, {kNearestWord});
      const float start = Joined(dtype, split.weights, split.residuals)[0];
      for (const float part : {0.125F, 0.5F, 0.8125F}) {
        const auto value = static_cast<float>(start + part * step);
        const std::vector<float> masters(kTimes, value);
        const Split rounded = SplitOf(dtype, masters, WordsOf(kTimes, 7));
        double sum = 0;
        for (const float master : Joined(dtype, rounded.weights, rounded.residuals)) sum += master;
        const double deviation = std::sqrt(part * (1 - part) / kTimes) * step;
        EXPECT_NEAR(sum / kTimes, value, 5 * deviation) << base << " " << part;
      }
    }
  }
}

// Updates that are a 128th of a residual's step add up.
TEST(SplitMaster, TakeUpdatesThatRoundingToNearestWouldLose) {
  constexpr size_t kElements = 512;
  constexpr int kSteps = 2000;
  constexpr float kUpdate = 0x1.0p-22F;  // the last place of fp32 is 2^-23 here
  std::vector<float> masters(kElements, 1.0F);
  Split split = SplitOf(DType::kBF16, masters, WordsOf(kElements, 0));
  for (int step = 1; step <= kSteps; ++step) {
    masters = Joined(DType::kBF16, split.weights, split.residuals);
    for (float& master : masters) master += kUpdate;
    split = SplitOf(DType::kBF16, masters, WordsOf(kElements, static_cast<uint64_t>(step)));
  }
  double sum = 0;
  for (const float master : Joined(DType::kBF16, split.weights, split.residuals)) sum += master - 1;
  const double expected = kSteps * double{kUpdate};
  EXPECT_NEAR(sum / kElements, expected, 0.05 * expected);
}

TEST(SplitMaster, KeepFiniteOnesFiniteAndOthersNot) {
  const std::vector<float> masters = {65520.0F, -1e6F, 3.4e38F, kInfinity, -kInfinity, kNaN};
  const std::vector<uint32_t> words(masters.size(), 0xff);
  const Split half = SplitOf(DType::kF16, masters, words);
  EXPECT_EQ(half.weights, (std::vector<uint16_t>{0x7bff, 0xfbff, 0x7bff, 0x7c00, 0xfc00, 0x7e00}));
  EXPECT_EQ(half.residuals, (std::vector<uint8_t>{127, 127, 127, 0, 0, 0}));
  EXPECT_EQ(Joined(DType::kF16, half.weights, half.residuals)[0], 65504.0F + 127.0F / 8);
  const Split bf16 = SplitOf(DType::kBF16, masters, words);
  EXPECT_EQ(bf16.weights[2], 0x7f7f);
  EXPECT_EQ(bf16.weights[3], 0x7f80);
  EXPECT_EQ(bf16.weights[5], 0x7fc0);
  // The residual beside a weight that is not finite is ignored.
  const std::vector<float> joined =
      Joined(DType::kF16, {0x7c00, 0xfc00, 0x7e00}, {0x80, 0x7f, 0x80});
  EXPECT_EQ(joined[0], kInfinity);
  EXPECT_EQ(joined[1], -kInfinity);
  EXPECT_TRUE(std::isnan(joined[2]));
}

}  // namespace
}  // namespace spillway::optim
