// SPDX-License-Identifier: Apache-2.0
//
// Tests conversions between fp32 and 16-bit types, and operations on 16-bit values in place,
// against the scalar functions and against the rule itself: the nearest value, and on a tie the
// even one.

#include "tools/trainer/kernels/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "spillway/types.h"
#include "src/base/half_floats.h"
#include "tests/seed.h"
#include "tests/trainer/each_target.h"

namespace spillway::trainer {
namespace {

using Convert = EachTarget;

// A 16-bit type with its scalar conversions, the reference for the vector conversions.
struct Narrow {
  DType type;
  uint16_t (*from_float)(float);
  float (*to_float)(uint16_t);
  uint16_t infinity;
  float overflow;  // the least value that rounds to infinity
};

constexpr Narrow kNarrow[] = {
    {DType::kF16, base::FloatToHalf, base::HalfToFloat, 0x7C00, 65520.0f},
    {DType::kBF16, base::FloatToBf16, base::Bf16ToFloat, 0x7F80, 0x1.FFp127f},
};

std::vector<uint16_t> ToNarrow(DType type, const std::vector<float>& floats) {
  std::vector<uint16_t> narrow(floats.size());
  FromFloats(type, floats.data(), static_cast<int64_t>(floats.size()), narrow.data());
  return narrow;
}

TEST_P(Convert, Every16BitValueSurvivesTheRoundTrip) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const Narrow& of : kNarrow) {
    SCOPED_TRACE(Name(of.type));
    std::vector<float> floats(all.size());
    ToFloats(of.type, all.data(), 65536, floats.data());
    const std::vector<uint16_t> back = ToNarrow(of.type, floats);
    for (size_t i = 0; i < all.size(); ++i) {
      if ((i & 0x7FFF) > of.infinity) {
        ASSERT_TRUE(std::isnan(floats[i])) << i;
        ASSERT_GT(back[i] & 0x7FFF, of.infinity) << i;
      } else {
        ASSERT_EQ(back[i], all[i]);
        ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(of.to_float(all[i])));
      }
    }
  }
}

TEST_P(Convert, FloatsGoToTheNearest16BitsAndTiesToEven) {
  for (const Narrow& of : kNarrow) {
    SCOPED_TRACE(Name(of.type));
    const float largest = of.to_float(static_cast<uint16_t>(of.infinity - 1));
    std::vector<float> floats = {0.0f,
                                 -0.0f,
                                 largest,
                                 std::nextafter(of.overflow, 0.0f),
                                 of.overflow,
                                 -of.overflow,
                                 kInfinity,
                                 -kInfinity,
                                 0x1p-24f,
                                 0x1p-25f,
                                 0x1.8p-25f,
                                 0x1p-26f,
                                 -0x1.4p-24f,
                                 0x1.ffep-15f,
                                 0x1.ffffp-15f,
                                 1.0f + 0x1p-11f,
                                 1.0f + 0x3p-11f,
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::min(),
                                 std::numeric_limits<float>::denorm_min(),
                                 0x1p-133f,
                                 0x1p-134f,
                                 -0x1.8p-134f,
                                 0x1.ffp-127f};
    // Adds the values halfway between neighbours, and the fp32 values next to these, over the whole
    // range.
    for (int narrow = 0; narrow < of.infinity - 1; narrow += 37) {
      const float below = of.to_float(static_cast<uint16_t>(narrow));
      const float above = of.to_float(static_cast<uint16_t>(narrow + 1));
      const float middle = below + (above - below) / 2;
      for (float value :
           {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)}) {
        floats.push_back(value);
        floats.push_back(-value);
      }
    }
    const std::vector<uint16_t> narrow = ToNarrow(of.type, floats);
    std::vector<float> rounded = floats;
    RoundTo(of.type, rounded.data(), static_cast<int64_t>(rounded.size()));
    for (size_t i = 0; i < floats.size(); ++i) {
      const float value = floats[i];
      const float got = of.to_float(narrow[i]);
      ASSERT_EQ(narrow[i], of.from_float(value)) << value;
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(rounded[i])) << value;
      ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
      if (std::fabs(value) >= of.overflow) {
        ASSERT_TRUE(std::isinf(got)) << value;
        continue;
      }
      // No neighbour is nearer, and on a tie the result is even.
      const auto magnitude = static_cast<uint16_t>(narrow[i] & 0x7FFF);
      const double error = std::fabs(std::fabs(double{value}) - of.to_float(magnitude));
      for (int step : {-1, 1}) {
        if (magnitude + step < 0 || magnitude + step >= of.infinity) continue;
        const float other = of.to_float(static_cast<uint16_t>(magnitude + step));
        const double other_error = std::fabs(std::fabs(double{value}) - other);
        ASSERT_LE(error, other_error) << value;
        if (error == other_error) {
          ASSERT_EQ(magnitude & 1, 0) << value;
        }
      }
    }
  }
}

// Whole vectors and the remainder after them agree with the scalar functions on any bits.
TEST_P(Convert, AnyBitsBecomeWhatTheScalarsSay) {
  std::mt19937_64 random(test::Seed());
  std::vector<float> floats(4099);
  for (float& value : floats) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (const uint32_t bits : {0x7F800001u, 0xFFFFFFFFu, 0x7FC00000u, 0xFF800001u, 0x7F80FFFFu})
    floats[random() % floats.size()] = std::bit_cast<float>(bits);
  for (const Narrow& of : kNarrow) {
    SCOPED_TRACE(Name(of.type));
    const std::vector<uint16_t> narrow = ToNarrow(of.type, floats);
    std::vector<float> rounded = floats;
    RoundTo(of.type, rounded.data(), static_cast<int64_t>(rounded.size()));
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(narrow[i], of.from_float(floats[i])) << floats[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]),
                std::bit_cast<uint32_t>(of.to_float(narrow[i])));
      ASSERT_EQ(std::isnan(rounded[i]), std::isnan(floats[i])) << floats[i];
    }
  }
}

TEST_P(Convert, AddsRoundOnce) {
  constexpr int64_t kN = 101;
  const std::vector<float> a = Random(kN, 1), b = Random(kN, 2, 1e-3f);
  for (const Narrow& of : kNarrow) {
    const std::vector<uint16_t> before = ToNarrow(of.type, a);
    std::vector<uint16_t> sums = before;
    AddTo(of.type, b.data(), kN, sums.data());
    for (size_t i = 0; i < kN; ++i)
      EXPECT_EQ(sums[i], of.from_float(of.to_float(before[i]) + b[i]));
  }
  std::vector<float> floats = a;
  AddToFloats(b.data(), kN, floats.data());
  for (size_t i = 0; i < kN; ++i) EXPECT_EQ(floats[i], a[i] + b[i]);
}

TEST_P(Convert, Fp32IsCopiedAsItIs) {
  std::vector<float> values = Random(77, 1);
  values[3] = values[76] = 0x1p-140f;
  std::vector<float> copy(values.size()), back(values.size());
  FromFloats(DType::kF32, values.data(), 77, copy.data());
  ToFloats(DType::kF32, copy.data(), 77, back.data());
  RoundTo(DType::kF32, copy.data(), 77);
  EXPECT_EQ(copy, values);
  EXPECT_EQ(back, values);
}

TEST_P(Convert, SumsOfSquaresAreExactEnoughAndShowWhatIsNotFinite) {
  for (int64_t n : {0, 1, 31, 64, 1024, 4099}) {
    std::vector<float> values = Random(static_cast<size_t>(n), 3, 100.0f);
    double expected = 0;
    for (float v : values) expected += static_cast<double>(v) * v;
    EXPECT_NEAR(SumOfSquares(DType::kF32, values.data(), n), expected, 1e-13 * expected);
    for (const Narrow& of : kNarrow) {
      const std::vector<uint16_t> narrow = ToNarrow(of.type, values);
      expected = 0;
      for (uint16_t v : narrow) expected += static_cast<double>(of.to_float(v)) * of.to_float(v);
      EXPECT_NEAR(SumOfSquares(of.type, narrow.data(), n), expected, 1e-13 * expected);
    }
    for (size_t bad = 0; bad < values.size(); bad += 97) {
      for (float poison : {kInfinity, kNaN}) {
        const float kept = std::exchange(values[bad], poison);
        EXPECT_FALSE(std::isfinite(SumOfSquares(DType::kF32, values.data(), n)));
        for (const Narrow& of : kNarrow) {
          const std::vector<uint16_t> narrow = ToNarrow(of.type, values);
          EXPECT_FALSE(std::isfinite(SumOfSquares(of.type, narrow.data(), n)));
        }
        values[bad] = kept;
      }
    }
  }
  const std::vector<float> largest(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(SumOfSquares(DType::kF32, largest.data(), 100)));
}

INSTANTIATE_TEST_SUITE_P(Targets, Convert, TargetsHere(), NameOfTarget);

}  // namespace
}  // namespace spillway::trainer
