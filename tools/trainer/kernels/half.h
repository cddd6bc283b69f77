// SPDX-License-Identifier: Apache-2.0
//
// Conversions between float and IEEE 754 binary16, one number at a time, by bit operations: the
// reference for the vector conversions, and their replacement on instruction sets that have none.
// binary16 is stored as uint16_t; no arithmetic is done in it.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_HALF_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_HALF_H_

#include <bit>
#include <cstdint>

namespace spillway::trainer {

// Rounds to nearest, ties to even. A value that is too large becomes infinity; NaN stays NaN.
inline uint16_t HalfFromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the result, rounded to nearest even, in the low bits of the sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

inline float FloatFromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  }
  if (magnitude < 0x400u) {
    // A subnormal half is its integer times 2^-24, exactly.
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_HALF_H_
