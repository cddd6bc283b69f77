// SPDX-License-Identifier: Apache-2.0
//
// Tests the codec of compact state's moments: its codes are the reference's on every instruction
// set, rounding has no bias, a second moment that is not zero never decodes to zero, and any bytes
// decode to something.

#include "src/optim/group_codec.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
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
constexpr CodeMap kMaps[] = {CodeMap::kSigned, CodeMap::kUnsigned, CodeMap::kGrowing};

bool IsSame(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<uint32_t> WordsOf(size_t n, uint64_t key, uint64_t first = 0) {
  std::vector<uint32_t> words(n);
  FillRandomWords(key, first, static_cast<int64_t>(n), words.data());
  return words;
}

// Groups of values, encoded.
struct EncodedGroups {
  std::vector<std::byte> scales;
  std::vector<uint8_t> codes;
};
EncodedGroups Encoded(CodeMap map, const std::vector<float>& values,
                      const std::vector<uint32_t>& words) {
  EncodedGroups groups = {std::vector<std::byte>((values.size() + 63) / 64 * 2),
                          std::vector<uint8_t>(values.size())};
  EncodeGroups(map, values.data(), words.data(), static_cast<int64_t>(values.size()),
               groups.scales.data(), groups.codes.data());
  return groups;
}
std::vector<float> Decoded(CodeMap map, const EncodedGroups& groups) {
  std::vector<float> values(groups.codes.size());
  DecodeGroups(map, groups.scales.data(), groups.codes.data(), static_cast<int64_t>(values.size()),
               values.data());
  return values;
}

// Runs on each instruction set of this machine, by restricting dispatch to it.
class Groups : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  std::mt19937_64 random_{test::Seed()};
};

TEST_P(Groups, OfGroupsAreTheReferences) {
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    const size_t n = random_() % 300 + 1;
    const float size = std::exp2(static_cast<float>(random_() % 250) - 126);
    std::vector<float> values(n);
    for (float& value : values) value = std::pow(normal(random_), 3.0F) * size;
    if (round % 10 == 0) values[random_() % n] = round % 20 == 0 ? kNaN : -kInfinity;
    if (round % 10 == 1) std::fill(values.begin(), values.end(), 0.0F);
    const std::vector<uint32_t> words = WordsOf(n, random_());
    for (const CodeMap map : kMaps) {
      const EncodedGroups groups = Encoded(map, values, words);
      const std::vector<float> decoded = Decoded(map, groups);
      for (size_t i = 0; i < n; ++i) {
        const size_t begin = i / 64 * 64;
        uint16_t scale = 0;
        std::memcpy(&scale, &groups.scales[i / 64 * 2], 2);
        ASSERT_EQ(scale, ReferenceScale(map, &values[begin], std::min<size_t>(64, n - begin)));
        ASSERT_EQ(groups.codes[i], ReferenceGroupCode(map, scale, values[i], words[i]))
            << values[i] << " over " << FloatOfScaleBits(scale);
        ASSERT_TRUE(IsSame(decoded[i], ReferenceGroupValue(map, scale, groups.codes[i])));
      }
    }
  }
}

TEST_P(Groups, RandomWordsFollowFromKeyAndElementAlone) {
  const uint64_t key = random_();
  constexpr uint64_t kFirst = 65536 * 3 - 2000;  // the range crosses the end of a block
  const std::vector<uint32_t> words = WordsOf(5000, key, kFirst);
  for (size_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], ReferenceWord(key, kFirst + i));
  for (const size_t piece : {1, 7, 33, 1999}) {
    for (size_t begin = 0; begin < words.size(); begin += piece) {
      const size_t n = std::min(piece, words.size() - begin);
      const std::vector<uint32_t> part = WordsOf(n, key, kFirst + begin);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), &words[begin]));
    }
  }
}

TEST_P(Groups, AnyBytesAreReadAndWritten) {
  for (int round = 0; round < 1000; ++round) {
    const size_t n = random_() % 200 + 1;
    EncodedGroups groups = {std::vector<std::byte>((n + 63) / 64 * 2), std::vector<uint8_t>(n)};
    for (std::byte& byte : groups.scales) byte = static_cast<std::byte>(random_());
    for (uint8_t& code : groups.codes) code = static_cast<uint8_t>(random_());
    const std::vector<uint32_t> words = WordsOf(n, random_());
    std::vector<float> any(n);
    for (float& value : any) value = std::bit_cast<float>(static_cast<uint32_t>(random_()));
    for (const CodeMap map : kMaps) {
      Encoded(map, Decoded(map, groups), words);
      Encoded(map, any, words);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Groups,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

TEST(Group, KeepTheMean) {
  constexpr size_t kTimes = 6400;
  for (const CodeMap map : kMaps) {
    for (const float ratio : {0.9F, 0.3F, 0.011F, 3e-4F, 2e-5F}) {
      // Each group has a 1, its largest element, and 63 elements of one other value.
      std::vector<float> values(kTimes, ratio);
      for (size_t i = 0; i < kTimes; i += 64) values[i] = 1.0F;
      double sum = 0, squares = 0;
      size_t count = 0;
      for (uint64_t key = 0; key < 20; ++key) {
        const std::vector<float> decoded = Decoded(map, Encoded(map, values, WordsOf(kTimes, key)));
        for (size_t i = 0; i < kTimes; ++i) {
          if (i % 64 == 0) continue;
          sum += decoded[i];
          squares += double{decoded[i]} * decoded[i];
          ++count;
        }
      }
      const auto n = static_cast<double>(count);
      const double variance = std::max(squares / n - sum / n * (sum / n), 0.0);
      // The tolerance is five standard deviations of the mean, and the error of a rounding
      // probability of few bits.
      const double step = map == CodeMap::kSigned ? 2 * std::sqrt(ratio) / 127 + 1.0 / 16129
                                                  : 4 * std::pow(ratio, 0.75) / 255;
      EXPECT_NEAR(sum / n, ratio, 5 * std::sqrt(variance / n) + step / 512) << ratio;
    }
  }
}

// Second moments follow a decay of a thousandth per step. With rounding to nearest they would not
// change.
TEST(Group, OfSecondMomentsDecayAsTheyShould) {
  std::vector<float> values(640);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::exp2(-static_cast<float>(i % 64) / 4);  // over five decades
  const std::vector<float> first = values;
  constexpr int kSteps = 1000;
  for (int step = 1; step <= kSteps; ++step) {
    values = Decoded(CodeMap::kUnsigned, Encoded(CodeMap::kUnsigned, values,
                                                 WordsOf(640, static_cast<uint64_t>(step))));
    for (float& value : values) value *= 0.999F;
  }
  double ratio = 0;
  for (size_t i = 0; i < values.size(); ++i) ratio += double{values[i]} / first[i] / 640;
  EXPECT_NEAR(ratio, std::pow(0.999, kSteps), 0.1 * std::pow(0.999, kSteps));
}

// With the scale of other second moments, each step would round the elements once more, and those
// that exceed what they were would stay so.
TEST(Group, OfGrowingMomentsKeepWhatDoesNotGrow) {
  std::vector<float> stays(640), values;
  for (size_t i = 0; i < stays.size(); ++i)
    stays[i] = std::exp2(-static_cast<float>(i % 64) / 8);  // over more than two decades
  values = stays;
  for (int step = 1; step <= 2000; ++step) {  // the largest of each group grows to 55 times itself
    const float largest = std::exp(0.002F * static_cast<float>(step));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::max(values[i], i % 64 == 0 ? largest : stays[i]);
    values = Decoded(CodeMap::kGrowing,
                     Encoded(CodeMap::kGrowing, values, WordsOf(640, static_cast<uint64_t>(step))));
  }
  double ratio = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 64 != 0) ratio += std::log(double{values[i]} / stays[i]) / 630;
  }
  EXPECT_GT(ratio, -0.05);
  EXPECT_LT(ratio, 0.25);
}

TEST(Group, OfASecondMomentThatIsNotZeroNeverDecodeToZero) {
  const float least = std::numeric_limits<float>::denorm_min();
  for (const float largest : {least, 1e-38F, 1e-30F, 1e-20F, 1.0F, 3.4e38F}) {
    const std::vector<float> values = {largest, least, 0.0F, largest * 1e-12F + least};
    for (uint64_t key = 0; key < 50; ++key) {
      const std::vector<float> decoded =
          Decoded(CodeMap::kUnsigned, Encoded(CodeMap::kUnsigned, values, WordsOf(4, key)));
      EXPECT_GT(decoded[0], 0.0F);
      EXPECT_GT(decoded[1], 0.0F);
      EXPECT_EQ(decoded[2], 0.0F);
      EXPECT_GT(decoded[3], 0.0F);
      for (const float value : decoded) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Group, OfZerosAreZeroBytesThatDecodeToZeros) {
  for (const CodeMap map : kMaps) {
    const EncodedGroups groups = Encoded(map, std::vector<float>(100), WordsOf(100, 3));
    EXPECT_EQ(groups.scales, std::vector<std::byte>(4));
    EXPECT_EQ(groups.codes, std::vector<uint8_t>(100));
    EXPECT_EQ(Decoded(map, groups), std::vector<float>(100));
  }
}

TEST(Group, KeepSignsAndStayWithinAStep) {
  std::mt19937_64 random(test::Seed());
  std::normal_distribution<float> normal;
  std::vector<float> values(64 * 50);
  for (float& value : values) value = normal(random);
  const std::vector<float> decoded =
      Decoded(CodeMap::kSigned, Encoded(CodeMap::kSigned, values, WordsOf(values.size(), 1)));
  for (size_t group = 0; group < values.size(); group += 64) {
    float largest = 0;
    for (size_t i = group; i < group + 64; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = group; i < group + 64; ++i) {
      const float ratio = std::fabs(values[i]) / largest;
      EXPECT_NEAR(decoded[i], values[i],
                  largest * 1.01F * (2 * std::sqrt(ratio) + 3.0F / 127) / 127);
      if (decoded[i] != 0) {
        EXPECT_EQ(std::signbit(decoded[i]), std::signbit(values[i]));
      }
    }
  }
}

TEST(Group, WithValuesThatAreNotFiniteDecodeSo) {
  for (const float bad : {kInfinity, -kInfinity, kNaN}) {
    for (const CodeMap map : kMaps) {
      std::vector<float> values(100, 1.0F);
      values[37] = bad;
      const std::vector<float> decoded = Decoded(map, Encoded(map, values, WordsOf(100, 1)));
      EXPECT_FALSE(std::isfinite(decoded[37]));
      EXPECT_NEAR(decoded[70], 1.0F, 1e-6F) << "another group";
    }
  }
}

}  // namespace
}  // namespace spillway::optim
