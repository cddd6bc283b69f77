// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/compact_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/optim/rule_reference.h"

namespace spillway::optim {
namespace {

// A 16-bit type with 8 more bits of fraction.
struct WideType {
  int fraction_bits;  // including the 8
  int bias;           // of the exponent
  int infinity;       // as 16 bits
  int nan;            // as 16 bits
};
WideType WideTypeOf(DType dtype) {
  return dtype == DType::kF16 ? WideType{18, 15, 0x7c00, 0x7e00}
                              : WideType{15, 127, 0x7f80, 0x7fc0};
}

constexpr float UnitsOfMap(CodeMap map) {
  return map == CodeMap::kSigned ? 127.0F * 127.0F : 65025.0F * 65025.0F;
}

}  // namespace

float ReferenceJoin(DType dtype, SplitMaster split) {
  const WideType type = WideTypeOf(dtype);
  const int magnitude = split.weight & 0x7fff;
  const float sign = (split.weight & 0x8000) != 0 ? -1.0F : 1.0F;
  if (magnitude > type.infinity) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == type.infinity) return sign * std::numeric_limits<float>::infinity();
  const int joined = std::max(256 * magnitude + split.residual, 0);
  const int exponent = joined >> type.fraction_bits;
  const int fraction = joined & ((1 << type.fraction_bits) - 1);
  const int hidden = exponent == 0 ? 0 : 1 << type.fraction_bits;
  const int scale = std::max(exponent, 1) - type.bias - type.fraction_bits;
  return sign * static_cast<float>(std::ldexp(hidden + fraction, scale));
}

SplitMaster ReferenceSplit(DType dtype, float master, uint32_t word) {
  const WideType type = WideTypeOf(dtype);
  if (std::isnan(master)) return {static_cast<uint16_t>(type.nan), 0};
  const auto sign = static_cast<uint16_t>(std::signbit(master) ? 0x8000 : 0);
  if (std::isinf(master)) return {static_cast<uint16_t>(sign | type.infinity), 0};
  // `units` is the magnitude in units of the wide type's last place. The random word is added to
  // its 256ths, and the sum is rounded down to whole units.
  const double magnitude = std::fabs(static_cast<double>(master));
  const int least = 1 - type.bias;
  const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
  const double units = std::ldexp(magnitude, type.fraction_bits - exponent);
  // Splitting for fp16 drops only five bits, so the fraction is in 32nds. The fraction of a
  // denormal number is first rounded to 32nds.
  const double in_256ths = dtype == DType::kF16 ? 8 * std::nearbyint(32 * units) : 256 * units;
  const uint32_t random = dtype == DType::kF16 ? word & 0xf8 : word & 0xff;
  const double whole = std::floor((in_256ths + random) / 256);
  int joined = static_cast<int>(std::min(whole, 0x1.0p24));
  joined += (exponent + type.bias - 1) << type.fraction_bits;  // the hidden bit adds 1 to this
  joined = std::min(joined, 256 * (type.infinity - 1) + 127);
  const int weight = (joined + 128) >> 8;
  return {static_cast<uint16_t>(sign | weight), static_cast<int8_t>(joined - 256 * weight)};
}

uint16_t ReferenceScale(CodeMap map, const float* values, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  if (largest == 0) return 0;
  if (largest >= 0x7f800000) return largest == 0x7f800000 ? 0x7f80 : 0x7fc0;
  if (map == CodeMap::kGrowing) {
    int exponent = 0;
    const float fraction = std::frexp(std::bit_cast<float>(largest), &exponent);
    const int power = fraction == 0.5F ? exponent - 1 : exponent;
    return static_cast<uint16_t>(std::clamp((power + 127) << 7, (127 - 90) << 7, 0x7f7f));
  }
  return static_cast<uint16_t>(
      std::clamp<uint32_t>((largest + 0xffff) >> 16, (127 - 90) << 7, 0x7f7f));
}

float FloatOfScaleBits(uint16_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 16);
}

float ReferenceGroupValue(CodeMap map, uint16_t scale, uint8_t code) {
  const float unit = FloatOfScaleBits(scale) / UnitsOfMap(map);
  if (map != CodeMap::kSigned) {
    const auto square = static_cast<float>(code * code);
    return square * square * unit;
  }
  const int level = static_cast<int8_t>(code);
  return static_cast<float>(level * std::abs(level)) * unit;
}

uint8_t ReferenceGroupCode(CodeMap map, uint16_t scale, float value, uint32_t word) {
  const float most = UnitsOfMap(map);
  const float per_value = scale == 0 ? 0 : most / FloatOfScaleBits(scale);
  if (map == CodeMap::kSigned) {
    const float product = std::fabs(value) * per_value;
    const float units = product <= most ? product : most;
    const float below = std::floor(std::sqrt(units));
    const float rest = units - below * below;
    const float uniform = (static_cast<float>((word >> 8) & 0x3ff) + 0.5F) / 1024;
    const int code = std::min(static_cast<int>(below) + (rest > uniform * (2 * below + 1)), 127);
    return static_cast<uint8_t>(std::signbit(value) ? -code : code);
  }
  const float product = (value > 0 ? value : 0.0F) * per_value;
  const float units = product <= most ? product : most;
  const float below = std::floor(std::sqrt(std::sqrt(units))), above = below + 1;
  const float below2 = below * below, above2 = above * above;
  const float low = below2 * below2, high = above2 * above2;
  const float rest = units - low, step = high - low;
  const float uniform = (static_cast<float>(word >> 18) + 0.5F) / 16384;
  const float part = uniform * step;
  const int code = std::min(static_cast<int>(below) + (rest > part), 255);
  return static_cast<uint8_t>(value > 0 ? std::max(code, 1) : code);
}

float CompactRow::DecodeMoment(const std::byte* row, size_t m, size_t i) const {
  uint16_t scale = 0;
  std::memcpy(&scale, row + scale_at(m, i), 2);
  return ReferenceGroupValue(maps[m], scale, static_cast<uint8_t>(row[code_at(m, i)]));
}

void CompactRow::EncodeMoment(const std::vector<float>& values, uint64_t key, size_t first,
                              size_t m, std::byte* row) const {
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = i / kGroup * kGroup;
    const uint16_t scale = ReferenceScale(maps[m], &values[begin], std::min(kGroup, n - begin));
    std::memcpy(row + scale_at(m, i), &scale, 2);
    const uint32_t word = ReferenceWord(key, first + i);
    row[code_at(m, i)] = std::byte{ReferenceGroupCode(maps[m], scale, values[i], word)};
  }
}

}  // namespace spillway::optim
