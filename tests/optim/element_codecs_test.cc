// SPDX-License-Identifier: Apache-2.0
//
// Tests the codecs of 16-bit elements: every value is decoded and rounded correctly on every
// instruction set; random rounding is unbiased, depends on tensor, element and step alone, and
// never makes a finite value infinite.

#include "src/optim/element_codecs.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/optim/rule_reference.h"

namespace spillway::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ElementCodecs : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

std::vector<float> Decoded(DType dtype, const std::vector<uint16_t>& values) {
  std::vector<float> floats(values.size());
  CodecOf(dtype).decode(values.data(), static_cast<int64_t>(values.size()), floats.data());
  return floats;
}

std::vector<uint16_t> Encoded(DType dtype, const std::vector<float>& floats) {
  std::vector<uint16_t> values(floats.size());
  CodecOf(dtype).encode(floats.data(), static_cast<int64_t>(floats.size()), values.data());
  return values;
}

std::vector<uint16_t> Randomly(const std::vector<float>& floats, uint64_t key, uint64_t first) {
  std::vector<uint16_t> values(floats.size());
  EncodeBf16Randomly(floats.data(), static_cast<int64_t>(floats.size()), key, first, values.data());
  return values;
}

TEST_P(ElementCodecs, ReadEveryValue) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<float> floats = Decoded(dtype, all);
    for (size_t i = 0; i < all.size(); ++i) {
      const float expected = dtype == DType::kF16 ? FloatOfHalf(all[i]) : FloatOfBf16(all[i]);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(floats[i])) << i;
      } else {
        EXPECT_EQ(floats[i], expected) << i;
      }
    }
  }
}

// Rounds every value, every midpoint of two neighbours, and the floats on either side of both.
TEST_P(ElementCodecs, RoundToNearestEven) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const bool is_half = dtype == DType::kF16;
    const auto value_of = [&](uint32_t bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      return is_half ? FloatOfHalf(narrow) : FloatOfBf16(narrow);
    };
    std::vector<float> values = {65536.0F, 70000.0F, 3e38F, 3.4e38F, kInfinity, 1e-30F, 1e-42F};
    const uint32_t last = is_half ? 0x7bff : 0x7f7f;
    for (uint32_t bits = 0; bits < last; ++bits) {
      const float low = value_of(bits);
      for (const float at : {low, 0.5F * low + 0.5F * value_of(bits + 1)}) {
        for (const float value : {std::nextafter(at, -1.0F), at, std::nextafter(at, 1e38F)}) {
          values.push_back(value);
          values.push_back(-value);
        }
      }
    }
    const std::vector<uint16_t> encoded = Encoded(dtype, values);
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t expected = is_half ? HalfOfFloat(values[i]) : Bf16OfFloat(values[i]);
      if (encoded[i] != expected && ++wrong < 10)
        ADD_FAILURE() << values[i] << " became " << encoded[i] << ", not " << expected;
    }
    EXPECT_EQ(wrong, 0U);
  }
}

TEST_P(ElementCodecs, KeepNaN) {
  for (const uint32_t bits : {0x7fc00000U, 0x7f800001U, 0xffffffffU, 0xff80ffffU}) {
    const std::vector<float> nan(5, std::bit_cast<float>(bits));
    for (const DType dtype : {DType::kF16, DType::kBF16})
      EXPECT_TRUE(std::isnan(Decoded(dtype, Encoded(dtype, nan))[4]));
    EXPECT_TRUE(std::isnan(FloatOfBf16(Randomly(nan, 1, 0)[4])));
  }
}

TEST_P(ElementCodecs, RoundRandomlyByTensorElementAndStepAlone) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(5000);
  for (float& value : values) value = normal(random) * std::exp2(float(random() % 200) - 100);
  const uint64_t key = RoundingKey("w/exp_avg", 7);
  constexpr uint64_t kFirst = 65536 * 3 - 2000;  // the range crosses the end of a block
  std::vector<uint16_t> expected;
  for (size_t i = 0; i < values.size(); ++i)
    expected.push_back(RandomlyRounded(values[i], key, kFirst + i));
  EXPECT_EQ(Randomly(values, key, kFirst), expected);
  for (const size_t piece : {1, 7, 33, 1999}) {
    std::vector<uint16_t> pieces(values.size());
    for (size_t begin = 0; begin < values.size(); begin += piece) {
      EncodeBf16Randomly(values.data() + begin,
                         static_cast<int64_t>(std::min(piece, values.size() - begin)), key,
                         kFirst + begin, pieces.data() + begin);
    }
    EXPECT_EQ(pieces, expected) << piece;
  }
}

TEST_P(ElementCodecs, RoundingRandomlyKeepsTheMean) {
  constexpr int kTimes = 40000;
  for (const float part : {0.01F, 0.25F, 0.5F, 0.9F}) {
    const float value = 1.0F + part / 128.0F;  // between 1 and 1 + 1/128
    const std::vector<float> values(kTimes, value);
    double sum = 0;
    for (const uint16_t bits : Randomly(values, RoundingKey("w", 1), 0)) sum += FloatOfBf16(bits);
    // The tolerance is five standard deviations of the mean.
    const double deviation = std::sqrt(part * (1 - part) / kTimes) / 128.0;
    EXPECT_NEAR(sum / kTimes, value, 5 * deviation) << part;
  }
}

TEST_P(ElementCodecs, RoundingRandomlyKeepsFiniteValuesFiniteAndExactOnesExact) {
  const float most = std::numeric_limits<float>::max();
  for (uint64_t key = 0; key < 50; ++key) {
    const std::vector<uint16_t> rounded =
        Randomly({most, -most, FloatOfBf16(0x7f7f), kInfinity, -kInfinity, 0.0F, -0.0F, 1.5F,
                  std::numeric_limits<float>::denorm_min()},
                 key, 0);
    EXPECT_EQ(std::vector(rounded.begin(), rounded.end() - 1),
              (std::vector<uint16_t>{0x7f7f, 0xff7f, 0x7f7f, 0x7f80, 0xff80, 0, 0x8000, 0x3fc0}));
    EXPECT_LE(rounded.back(), 1);
  }
}

std::string TargetName(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}

TEST_P(ElementCodecs, CopyWhatIsAskedForFromAndToAnyAddress) {
  constexpr size_t kMost = 600;
  std::vector<uint8_t> from(kMost), to(kMost + 1);
  for (size_t i = 0; i < kMost; ++i) from[i] = static_cast<uint8_t>(i % 251);
  for (const size_t begin : {0, 1, 16, 63}) {
    for (const size_t offset : {0, 2, 64, 65}) {
      for (const size_t size : {0, 1, 63, 64, 200, 500}) {
        std::fill(to.begin(), to.end(), uint8_t{255});
        CopyStreamed(&from[begin], static_cast<int64_t>(size), &to[offset]);
        FlushStreamed();
        ASSERT_TRUE(std::equal(&to[offset], &to[offset + size], &from[begin]));
        ASSERT_EQ(std::count(to.begin(), to.end(), 255), static_cast<int64_t>(to.size() - size));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, ElementCodecs,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), TargetName);

// Rounds 4096 elements that lie half way between two values, each up or down at random.
std::vector<uint16_t> Ups(uint64_t key) {
  return Randomly(std::vector<float>(4096, 1.0F + 0.5F / 128.0F), key, 0);
}

TEST(RoundingKey, DiffersBetweenTensorsAndSteps) {
  std::set<uint64_t> keys;
  for (int tensor = 0; tensor < 100; ++tensor) {
    for (int64_t step = 1; step <= 100; ++step)
      keys.insert(RoundingKey("model.layers." + std::to_string(tensor) + "/exp_avg", step));
  }
  EXPECT_EQ(keys.size(), 10000U);
  EXPECT_NE(RoundingKey("w/exp_avg", 1), RoundingKey("w/exp_avg_sq", 1));
}

// Any two streams agree in about half of their elements, at any lag.
TEST(RoundingKey, MakesStreamsThatDoNotFollowEachOther) {
  const std::vector<uint16_t> first = Ups(RoundingKey("w/exp_avg", 1));
  for (const uint64_t key : {RoundingKey("w/exp_avg_sq", 1), RoundingKey("v/exp_avg", 1),
                             RoundingKey("w/exp_avg", 2), RoundingKey("w/exp_avg", 65537)}) {
    const std::vector<uint16_t> other = Ups(key);
    for (const size_t lag : {0, 1, 16}) {
      int same = 0;
      for (size_t i = lag; i < first.size(); ++i) same += first[i - lag] == other[i];
      EXPECT_NEAR(same, 2048, 5 * 32) << lag;  // five standard deviations
    }
  }
}

}  // namespace
}  // namespace spillway::optim
