// SPDX-License-Identifier: Apache-2.0
//
// Compares the conversions of halves with the compiler's _Float16, which is an independent
// implementation of the same rules. tests/trainer/convert_test.cc holds both formats against the
// rules themselves.

#include "src/base/half_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "tests/seed.h"

namespace spillway::base {
namespace {

bool SameHalf(float value) {
  return FloatToHalf(value) == std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

TEST(HalfFloats, EveryHalfBecomesTheFloatOfItsValue) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float expected = static_cast<float>(std::bit_cast<_Float16>(half));
    const float found = HalfToFloat(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(HalfFloats, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const bool is_signalling = std::isnan(HalfToFloat(half)) && (bits & 0x200u) == 0;
    EXPECT_EQ(FloatToHalf(HalfToFloat(half)), is_signalling ? bits | 0x200u : bits);
  }
}

TEST(HalfFloats, EveryBFloat16IsTheUpperHalfOfAFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    EXPECT_EQ(std::bit_cast<uint32_t>(Bf16ToFloat(static_cast<uint16_t>(bits))), bits << 16);
  }
}

TEST(HalfFloats, FloatsBetweenHalvesRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = bits == 0x7bff ? 65536.0f : HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: a half has 13 fewer fraction bits
    for (float value : {std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
      EXPECT_TRUE(SameHalf(value)) << value;
      EXPECT_TRUE(SameHalf(-value)) << value;
    }
  }
}

TEST(HalfFloats, RandomFloatsRoundAsTheCompilersDo) {
  std::mt19937_64 random(test::Seed());
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_TRUE(SameHalf(value)) << value;
  }
}

TEST(HalfFloats, LargeFloatsBecomeInfinityAndNansStay) {
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(NAN))));
  // A NaN whose payload is in the lowest bits only must not become infinity.
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace spillway::base
