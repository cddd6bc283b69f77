// SPDX-License-Identifier: Apache-2.0
//
// One element of compact and of bf16 state, in the arithmetic of the vectors of group_codec.cc,
// split_master.cc and element_lanes-inl.h: the same bits. Those files give the reasons.

#ifndef SPILLWAY_OPTIM_COMPACT_ELEMENTS_H_
#define SPILLWAY_OPTIM_COMPACT_ELEMENTS_H_

#include <cmath>
#include <cstdint>

#include "src/simt/device_code.h"
#include "src/simt/elements.h"

namespace spillway::optim {

// Rounds a value to bf16 by 16 random bits. A finite value stays finite.
SPILLWAY_SIMT inline uint16_t Bf16AtRandom(float value, uint32_t random) {
  const uint32_t bits = simt::BitsOf(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  uint32_t rounded = magnitude;
  if (magnitude < 0x7f800000u) {
    rounded = magnitude + random;
    if (rounded > 0x7f7fffffu) rounded = 0x7f7fffffu;
  }
  return static_cast<uint16_t>((rounded | (bits & 0x80000000u)) >> 16);
}

// --- Moments ---

// The units of the largest code: the values of codes are c·|c| and c⁴ units.
SPILLWAY_SIMT constexpr float CompactUnits(bool is_signed) {
  return is_signed ? 127.0f * 127.0f : 255.0f * 255.0f * (255.0f * 255.0f);
}

// Returns a group's scale, as the bits of a bf16, from the bits of its largest magnitude.
SPILLWAY_SIMT inline uint16_t CompactScale(uint32_t magnitude_bits) {
  constexpr uint32_t kLeast = (127 - 90) << 7, kMost = 0x7f7f;
  if (magnitude_bits == 0) return 0;
  if (magnitude_bits > 0x7f800000u) return 0x7fc0;
  if (magnitude_bits == 0x7f800000u) return 0x7f80;
  const uint32_t up = (magnitude_bits + 0xffffu) >> 16;
  return static_cast<uint16_t>(up < kLeast ? kLeast : up > kMost ? kMost : up);
}

SPILLWAY_SIMT inline float DecodeCompact(bool is_signed, uint16_t scale, uint8_t code) {
  const float value_per_unit = simt::FloatOfBf16(scale) / CompactUnits(is_signed);
  if (is_signed) {
    const auto level = static_cast<float>(static_cast<int8_t>(code));
    return level * (level < 0 ? -level : level) * value_per_unit;
  }
  const auto level = static_cast<float>(code);
  const float square = level * level;
  return square * square * value_per_unit;
}

// Returns a number that is uniform in (0, 1), from kBits bits of a word, of which kFrom is the
// lowest.
template <int kFrom, int kBits>
SPILLWAY_SIMT float UniformOf(uint32_t word) {
  constexpr int kUp = 23 - kBits - kFrom;
  constexpr uint32_t kFraction = ((uint32_t{1} << kBits) - 1) << (23 - kBits);
  constexpr float kHalfPart = 0.5f / static_cast<float>(1 << kBits);
  const uint32_t moved = kUp > 0 ? word << (kUp > 0 ? kUp : 0) : word >> (kUp < 0 ? -kUp : 0);
  return simt::FloatOf(0x3f800000u | (moved & kFraction)) - (1.0f - kHalfPart);
}

SPILLWAY_SIMT inline float FourthPowerOf(float value) {
  const float square = value * value;
  return square * square;
}

SPILLWAY_SIMT inline uint8_t EncodeCompact(bool is_signed, float value, uint16_t scale,
                                           uint32_t word) {
  const float most = CompactUnits(is_signed);
  const float units_per_value = scale == 0 ? 0.0f : most / simt::FloatOfBf16(scale);
  if (is_signed) {
    const float scaled = (value < 0 ? -value : value) * units_per_value;
    const float units = scaled <= most ? scaled : most;
    float below = std::rint(std::sqrt(units));
    if (below * below > units) below -= 1.0f;
    const float rest = units - below * below;
    const float step = below + below + 1.0f;
    const float level = rest > UniformOf<8, 10>(word) * step ? below + 1.0f : below;
    const bool is_negative = simt::BitsOf(value) >> 31 != 0;
    return static_cast<uint8_t>(static_cast<int>(is_negative ? -level : level));
  }
  const bool is_positive = value > 0;
  const float scaled = (is_positive ? value : 0.0f) * units_per_value;
  const float units = scaled <= most ? scaled : most;
  float below = std::rint(std::sqrt(std::sqrt(units)));
  if (FourthPowerOf(below) > units) below -= 1.0f;
  const float above = below + 1.0f;
  const float low = FourthPowerOf(below);
  const float part = UniformOf<18, 14>(word) * (FourthPowerOf(above) - low);
  const float level = units - low > part ? above : below;
  return static_cast<uint8_t>(static_cast<int>(is_positive && level < 1.0f ? 1.0f : level));
}

// --- Master weights ---

struct SplitWeight {
  uint16_t weight;
  uint8_t residual;
};

// Splits a master weight into an fp16 (or bf16) weight and a residual.
SPILLWAY_SIMT inline SplitWeight SplitMaster(bool is_half, float master, uint32_t word) {
  const uint32_t bits = simt::BitsOf(master);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(is_half ? 0x7e00 : 0x7fc0), 0};
  if (magnitude == 0x7f800000u)
    return {static_cast<uint16_t>(sign | (is_half ? 0x7c00u : 0x7f80u)), 0};
  const uint32_t random = word & 0xffu;
  uint32_t joined;  // the magnitude in 256ths of the weight's last place
  if (is_half) {
    constexpr uint32_t kFirstNormal = 113u << 23;
    const uint32_t rebased =
        magnitude < kFirstNormal
            ? simt::BitsOf(simt::FloatOf(magnitude) + simt::FloatOf(kFirstNormal)) - kFirstNormal
            : magnitude - (112u << 23);
    joined = (rebased + (random >> 3)) >> 5;
  } else {
    joined = (magnitude + random) >> 8;
  }
  const uint32_t most = is_half ? 0x7bff7fu : 0x7f7f7fu;
  if (joined > most) joined = most;
  const uint32_t nearest = (joined + 0x80u) >> 8;
  return {static_cast<uint16_t>(sign | nearest), static_cast<uint8_t>(joined - (nearest << 8))};
}

SPILLWAY_SIMT inline float JoinMaster(bool is_half, uint16_t weight, uint8_t residual) {
  const uint32_t sign = static_cast<uint32_t>(weight & 0x8000u) << 16;
  const int magnitude = weight & 0x7fff;
  const int infinity = is_half ? 0x7c00 : 0x7f80;
  if (magnitude > infinity) return simt::FloatOf(sign | 0x7fc00000u);
  if (magnitude == infinity) return simt::FloatOf(sign | 0x7f800000u);
  const int sum = (magnitude << 8) + static_cast<int8_t>(residual);
  const int joined = sum < 0 ? 0 : sum;
  const auto bits = static_cast<uint32_t>(joined);
  if (!is_half) return simt::FloatOf(sign | (bits << 8));
  if (joined < (0x400 << 8))
    return simt::FloatOf(sign | simt::BitsOf(static_cast<float>(joined) * 0x1p-32f));
  return simt::FloatOf(sign | ((bits << 5) + (112u << 23)));
}

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_COMPACT_ELEMENTS_H_
