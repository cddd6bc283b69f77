// SPDX-License-Identifier: Apache-2.0
//
// Conversions between fp32 and the 16-bit formats IEEE 754 binary16 ("half") and bfloat16, one
// number at a time, by bit operations. The 16-bit values are bit patterns in uint16_t; no
// arithmetic is done in them. A value is exact if the target can hold it, and otherwise rounded to
// nearest even. half_floats-inl.h converts vectors, to the same bits.

#ifndef SPILLWAY_BASE_HALF_FLOATS_H_
#define SPILLWAY_BASE_HALF_FLOATS_H_

#include <bit>
#include <cstdint>

namespace spillway::base {

// Exact, because every half is an fp32 value. A signalling NaN becomes quiet, as in F16C and
// PyTorch.
constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) {
    const uint32_t quiet = fraction == 0 ? 0u : 0x400000u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (fraction << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// A magnitude of 65520 or more becomes infinity. NaN stays NaN: it becomes quiet and keeps the
// upper bits of its payload.
constexpr uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  // 65520 is halfway between the largest half and the next power of two.
  if (magnitude >= 0x477ff000u) {
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: the result is a multiple of 2^-24
    // The last bit of a float from 0.5 to 1 is 2^-24, so the addition rounds as required.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

// Exact, because every bfloat16 is the upper half of an fp32 value.
constexpr float Bf16ToFloat(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

// A value that is too large becomes infinity. NaN stays NaN: it becomes quiet and keeps the upper
// bits of its payload.
constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16);
}

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_HALF_FLOATS_H_
