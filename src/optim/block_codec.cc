// SPDX-License-Identifier: Apache-2.0
//
// The nearest code is found without a search. The upper 16 bits of a float, its exponent and seven
// bits of fraction, say between which bounds it can lie: so narrow a range has one bound of a map
// at most, so one comparison is left.

#include "src/optim/block_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "src/optim/state_format.h"

namespace spillway::optim {
namespace {

constexpr int kDecades = 7;
constexpr int kSignedZero = 127;  // the code of zero on the signed map

// Ranges of floats with the same upper 16 bits, from 2^-22 to 1; the first is all that is smaller.
constexpr uint32_t kFirstRange = (127 - 22) << 7;
constexpr uint32_t kLastRange = 127 << 7;
constexpr size_t kRanges = kLastRange - kFirstRange + 2;

// What a map does with magnitudes: level 0 is zero, each level's value is larger than the one's
// before.
struct Levels {
  int count = 0;                         // of levels
  std::array<float, 256> values = {};    // by level
  std::array<float, 256> bounds = {};    // from here on the level above is the nearest
  std::array<uint8_t, kRanges> at = {};  // by range: the level where it begins
};

// Of decade i the values are the middles of so many equal parts of [0.1, 1], times 10^(i−6).
int PartsOfDecade(CodeMap map, int decade) {
  return 1 << (map == CodeMap::kSigned ? decade : decade + 1);
}

Levels MakeLevels(CodeMap map) {
  constexpr std::array<double, kDecades> kPowers = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  Levels levels;
  levels.values[levels.count++] = 0;
  for (int decade = 0; decade < kDecades; ++decade) {
    const int parts = PartsOfDecade(map, decade);
    for (int part = 0; part < parts; ++part) {
      const double middle = 0.1 + 0.9 * (part + 0.5) / parts;
      levels.values[levels.count++] = static_cast<float>(kPowers[decade] * middle);
    }
  }
  levels.values[levels.count++] = 1;
  levels.bounds.fill(std::numeric_limits<float>::infinity());
  for (int level = 0; level + 1 < levels.count; ++level) {
    levels.bounds[level] =
        static_cast<float>((double{levels.values[level]} + double{levels.values[level + 1]}) / 2);
  }
  if (map == CodeMap::kUnsigned) levels.bounds[0] = std::numeric_limits<float>::denorm_min();
  for (size_t range = 1; range < kRanges; ++range) {
    const auto first = static_cast<uint32_t>(kFirstRange + range - 1);
    const float begin = std::bit_cast<float>(first << 16);
    while (levels.bounds[levels.at[range]] <= begin) ++levels.at[range];
  }
  return levels;
}

const Levels& LevelsOf(CodeMap map) {
  static const Levels signed_levels = MakeLevels(CodeMap::kSigned);
  static const Levels unsigned_levels = MakeLevels(CodeMap::kUnsigned);
  return map == CodeMap::kSigned ? signed_levels : unsigned_levels;
}

// Of a magnitude in bits; NaN counts as the largest.
inline int LevelOf(const Levels& levels, uint32_t bits) {
  const uint32_t upper = std::clamp(bits >> 16, kFirstRange - 1, kLastRange);
  const int level = levels.at[upper - (kFirstRange - 1)];
  const auto bound = std::bit_cast<uint32_t>(levels.bounds[level]);
  return level + (bits >= bound ? 1 : 0);
}

inline uint8_t CodeAt(CodeMap map, const Levels& levels, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const bool is_negative = bits != magnitude;
  const int level = std::min(LevelOf(levels, magnitude), levels.count - 1);
  if (map == CodeMap::kUnsigned) return static_cast<uint8_t>(is_negative ? 0 : level);
  // There is no −1.
  return static_cast<uint8_t>(is_negative ? kSignedZero - std::min(level, kSignedZero)
                                          : kSignedZero + level);
}

std::array<float, 256> MakeValues(CodeMap map) {
  const Levels& levels = LevelsOf(map);
  if (map == CodeMap::kUnsigned) return levels.values;
  std::array<float, 256> values = {};
  for (int level = 0; level < levels.count; ++level) {
    values[kSignedZero + level] = levels.values[level];
    if (level <= kSignedZero) values[kSignedZero - level] = -levels.values[level];
  }
  values[kSignedZero] = 0;
  return values;
}

// The largest magnitude, or NaN if there is one: as whole numbers, bits are in the order of
// magnitudes.
float LargestMagnitude(const float* from, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(from[i]) & 0x7fffffffU);
  return std::bit_cast<float>(largest);
}

template <CodeMap kMap>
void EncodeAll(const float* from, int64_t n, uint8_t* codes) {
  const Levels& levels = LevelsOf(kMap);
  for (int64_t i = 0; i < n; ++i) codes[i] = CodeAt(kMap, levels, from[i]);
}

}  // namespace

const std::array<float, 256>& CodeValues(CodeMap map) {
  static const std::array<float, 256> signed_values = MakeValues(CodeMap::kSigned);
  static const std::array<float, 256> unsigned_values = MakeValues(CodeMap::kUnsigned);
  return map == CodeMap::kSigned ? signed_values : unsigned_values;
}

uint8_t CodeOf(CodeMap map, float value) { return CodeAt(map, LevelsOf(map), value); }

void DecodeBlock(CodeMap map, const std::byte* scale, const uint8_t* codes, int64_t n, float* to) {
  float factor = 0;
  std::memcpy(&factor, scale, sizeof(factor));
  const std::array<float, 256>& values = CodeValues(map);
  for (int64_t i = 0; i < n; ++i) to[i] = factor * values[codes[i]];
}

void EncodeBlock(CodeMap map, const float* from, int64_t n, std::byte* scale, uint8_t* codes) {
  const float largest = LargestMagnitude(from, n);
  std::memcpy(scale, &largest, sizeof(largest));
  const float divisor = largest > 0 ? largest : 1;
  float normal[kBlockElements];
  for (int64_t i = 0; i < n; ++i) normal[i] = from[i] / divisor;
  map == CodeMap::kSigned ? EncodeAll<CodeMap::kSigned>(normal, n, codes)
                          : EncodeAll<CodeMap::kUnsigned>(normal, n, codes);
}

}  // namespace spillway::optim
