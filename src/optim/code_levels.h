// SPDX-License-Identifier: Apache-2.0
//
// Code maps (block_codec.h) as numbers: the values of codes, and how codes are found. A GPU's
// sources have the values, too, so they are constant expressions of C++17.

#ifndef SPILLWAY_OPTIM_CODE_LEVELS_H_
#define SPILLWAY_OPTIM_CODE_LEVELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::optim {

// Which values codes have, and how the scale is rounded.
//   kSigned    Values of either sign.
//   kUnsigned  Values that are not negative.
//   kGrowing   The same values, of elements that only grow, as the largest second moment so far.
//              The scale is a power of two, so it seldom changes: each change rounds all elements
//              once more, and an error that makes one larger would stay.
enum class CodeMap : uint8_t { kSigned, kUnsigned, kGrowing };

// How magnitudes over the scale become the levels of a code map. Level 0 is zero, and each level's
// value is larger than the previous one's.
struct CodeLevels {
  static constexpr int kDecades = 7;
  struct Decade {
    float from = 0;    // half way from the previous decade's last value to this one's first
    float slope = 0;   // levels for a magnitude of 1
    float offset = 0;  // level at magnitude 0 if the decade's line went on to there
    float last = 0;    // the decade's largest level
  };
  Decade decades[kDecades];
  float one_from = 0;  // a magnitude from here on has the level of 1
  float one_level = 0;
  float least_level = 0;  // least level of a magnitude that is not zero
  float most_zero = 0;    // only a magnitude up to this, before the division, has level 0
  int zero_code = 0;      // a code is this plus or minus the level
};

inline constexpr int kSignedZero = 127;  // the code of zero on the signed map

// Returns the number of parts of a decade. The values of decade i are the middles of that many
// equal parts of [0.1, 1], times 10^(i−6).
constexpr int PartsOfDecade(CodeMap map, int decade) {
  return 1 << (map == CodeMap::kSigned ? decade : decade + 1);
}

inline constexpr double kDecadeTops[CodeLevels::kDecades] = {1e-6, 1e-5, 1e-4, 1e-3,
                                                             1e-2, 1e-1, 1.0};

constexpr double ValueIn(CodeMap map, int decade, int part) {
  return kDecadeTops[decade] * (0.1 + 0.9 * (part + 0.5) / PartsOfDecade(map, decade));
}

using CodeTable = std::array<float, 256>;

// Returns the values of the codes 0 to 255, in ascending order, at most 1.
constexpr CodeTable MakeCodeTable(CodeMap map) {
  const int zero = map == CodeMap::kSigned ? kSignedZero : 0;
  CodeTable values = {};
  int level = 1;
  for (int i = 0; i < CodeLevels::kDecades; ++i) {
    for (int part = 0; part < PartsOfDecade(map, i); ++part, ++level) {
      const auto value = static_cast<float>(ValueIn(map, i, part));
      const int code = zero + level;
      values[static_cast<size_t>(code)] = value;
      if (zero >= level) values[static_cast<size_t>(zero - level)] = -value;
    }
  }
  const int last = zero + level;
  values[static_cast<size_t>(last)] = 1;
  return values;
}

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_CODE_LEVELS_H_
