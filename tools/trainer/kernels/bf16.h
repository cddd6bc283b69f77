// SPDX-License-Identifier: Apache-2.0
//
// Conversions between float and bfloat16 (the upper half of a float), one number at a time, by bit
// operations: the reference for the vector conversions. bfloat16 is stored as uint16_t; no
// arithmetic is done in it.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_BF16_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_BF16_H_

#include <bit>
#include <cstdint>

namespace spillway::trainer {

// Rounds to nearest, ties to even. A value that is too large becomes infinity; NaN stays NaN
// (quiet, upper payload kept).
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7FFFu + odd) >> 16);
}

inline float FloatFromBf16(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_BF16_H_
