// SPDX-License-Identifier: Apache-2.0
//
// Elements of fp32, fp16 and bf16 in memory, read and written as fp32, on a GPU and on the host
// with the same bits. The type is a number and no template parameter, so that a kernel serves every
// combination of types: all threads take the same branch, and loads and stores take the time.

#ifndef SPILLWAY_SIMT_ELEMENTS_H_
#define SPILLWAY_SIMT_ELEMENTS_H_

#include <cstdint>
#include <cstring>
#include <limits>

#include "src/simt/device_code.h"

namespace spillway::simt {

enum class Element : uint8_t { kF32, kF16, kBF16 };

constexpr int ElementBytes(Element type) { return type == Element::kF32 ? 4 : 2; }

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

SPILLWAY_SIMT inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

SPILLWAY_SIMT inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// --- One number ---

// Exact. A NaN becomes quiet.
SPILLWAY_SIMT inline float FloatOfHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return FloatOf(sign | 0x7f800000u | quiet | (magnitude << 13));
  }
  if (magnitude < 0x400u) {  // zero, or a multiple of 2^-24
    return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return FloatOf(sign | ((magnitude << 13) + (112u << 23)));
}

// Rounds to nearest, ties to even. What is too large becomes infinity. A NaN becomes quiet and
// keeps the upper bits of its payload.
SPILLWAY_SIMT inline uint16_t HalfOfFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // from 65520 on
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14
    // The last bit of a float from 0.5 to 1 is 2^-24, so the addition rounds as required.
    half = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// Exact.
SPILLWAY_SIMT inline float FloatOfBf16(uint16_t bf16) {
  return FloatOf(static_cast<uint32_t>(bf16) << 16);
}

// As HalfOfFloat.
SPILLWAY_SIMT inline uint16_t Bf16OfFloat(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// --- In memory ---

SPILLWAY_SIMT inline float Load(Element type, const void* from, int64_t index) {
  if (type == Element::kF32) return static_cast<const float*>(from)[index];
  const uint16_t bits = static_cast<const uint16_t*>(from)[index];
  return type == Element::kF16 ? FloatOfHalf(bits) : FloatOfBf16(bits);
}

// Rounds once, to nearest, ties to even.
SPILLWAY_SIMT inline void Store(Element type, float value, void* to, int64_t index) {
  if (type == Element::kF32) {
    static_cast<float*>(to)[index] = value;
    return;
  }
  static_cast<uint16_t*>(to)[index] =
      type == Element::kF16 ? HalfOfFloat(value) : Bf16OfFloat(value);
}

}  // namespace spillway::simt

#endif  // SPILLWAY_SIMT_ELEMENTS_H_
