// SPDX-License-Identifier: Apache-2.0
//
// Codes of groups, compiled once for each instruction set by Highway. A group that does not fill
// its vectors goes through the same vector code by way of small buffers. All is arithmetic: a table
// of values would cost a load for each element.

#include "src/optim/group_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/optim/state_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/group_codec.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#ifndef SPILLWAY_OPTIM_GROUP_CODEC_CONSTANTS
#define SPILLWAY_OPTIM_GROUP_CODEC_CONSTANTS
namespace spillway::optim {
namespace {

// Which bits of an element's random word round what, above those of the residual.
constexpr int kSignedShift = 8;
constexpr uint32_t kSignedMask = 0x3ff;
constexpr int kUnsignedShift = 18;
constexpr uint32_t kUnsignedMask = 0x3fff;

// The largest codes, and what a value of the scale is in the units of decoded codes.
constexpr int kMostSigned = 127;
constexpr int kMostUnsigned = 255;
constexpr float kSignedUnits = 127.0F * 127.0F;
constexpr float kUnsignedUnits = 255.0F * 255.0F * (255.0F * 255.0F);

}  // namespace
}  // namespace spillway::optim
#endif  // SPILLWAY_OPTIM_GROUP_CODEC_CONSTANTS

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using FloatLanes = hn::Vec<Floats>;
using IntLanes = hn::Vec<Ints>;

constexpr size_t kMostLanes = hn::MaxLanes(Floats());

// A code is the root of a value, cut off to the code below it; the random bits then
// decide between that and the one above.

// Uniform in (0, 1), from as many bits as the mask has.
template <int kShift, uint32_t kMask>
HWY_INLINE FloatLanes Uniform(const uint32_t* random_words) {
  const Floats d;
  const Words du;
  const auto bits =
      hn::And(hn::ShiftRight<kShift>(hn::LoadU(du, random_words)), hn::Set(du, kMask));
  const auto count = hn::Set(d, 1.0F / static_cast<float>(kMask + 1));
  const auto whole = hn::ConvertTo(d, hn::BitCast(Ints(), bits));
  return hn::Mul(hn::Add(whole, hn::Set(d, 0.5F)), count);
}

// Of a whole number below 2^23. Highway's conversion spends three instructions on larger ones.
HWY_INLINE IntLanes IntegerOf(FloatLanes whole) {
  const auto shifted = hn::BitCast(Ints(), hn::Add(whole, hn::Set(Floats(), 0x1.0p23F)));
  return hn::And(shifted, hn::Set(Ints(), 0x7fffff));
}

// At most `most`, which is also what stands for NaN.
HWY_INLINE FloatLanes Limited(FloatLanes value, float most) {
  const auto limit = hn::Set(Floats(), most);
  return hn::IfThenElse(hn::Le(value, limit), value, limit);
}

HWY_INLINE IntLanes SignedCodes(const float* from, float units_per_value, const uint32_t* random) {
  const Floats d;
  const Ints di;
  const auto value = hn::LoadU(d, from);
  const auto units = Limited(hn::Mul(hn::Abs(value), hn::Set(d, units_per_value)), kSignedUnits);
  const auto below = hn::Floor(hn::Sqrt(units));
  const auto rest = hn::Sub(units, hn::Mul(below, below));
  const auto step = hn::Add(hn::Add(below, below), hn::Set(d, 1.0F));
  const auto goes_up = hn::Gt(rest, hn::Mul(Uniform<kSignedShift, kSignedMask>(random), step));
  const auto level = hn::Add(below, hn::IfThenElseZero(goes_up, hn::Set(d, 1.0F)));
  const auto code = hn::Min(IntegerOf(level), hn::Set(di, kMostSigned));
  const auto is_negative = hn::Lt(hn::BitCast(di, value), hn::Zero(di));
  return hn::IfThenElse(is_negative, hn::Neg(code), code);
}

HWY_INLINE IntLanes UnsignedCodes(const float* from, float units_per_value,
                                  const uint32_t* random) {
  const Floats d;
  const Ints di;
  const auto one = hn::Set(d, 1.0F);
  const auto given = hn::LoadU(d, from);
  const auto is_positive = hn::Gt(given, hn::Zero(d));
  const auto value = hn::IfThenElseZero(is_positive, given);
  const auto units = Limited(hn::Mul(value, hn::Set(d, units_per_value)), kUnsignedUnits);
  const auto below = hn::Floor(hn::Sqrt(hn::Sqrt(units)));
  const auto above = hn::Add(below, one);
  const auto below2 = hn::Mul(below, below), above2 = hn::Mul(above, above);
  const auto low = hn::Mul(below2, below2), high = hn::Mul(above2, above2);
  const auto part = hn::Mul(Uniform<kUnsignedShift, kUnsignedMask>(random), hn::Sub(high, low));
  const auto goes_up = hn::Gt(hn::Sub(units, low), part);
  const auto code = IntegerOf(hn::IfThenElse(goes_up, above, below));
  const auto least = hn::IfThenElseZero(hn::RebindMask(di, is_positive), hn::Set(di, 1));
  return hn::Max(hn::Min(code, hn::Set(di, kMostUnsigned)), least);
}

// A group that fills its vectors.
void EncodeWhole(bool is_signed, const float* from, float units_per_value, const uint32_t* random,
                 size_t n, uint8_t* codes) {
  const size_t lanes = hn::Lanes(Floats());
  const hn::Rebind<int8_t, Floats> d8;
  const hn::Rebind<uint8_t, Floats> du8;
  if (is_signed) {
    for (size_t i = 0; i < n; i += lanes) {
      const auto code = SignedCodes(from + i, units_per_value, random + i);
      hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<int8_t*>(codes + i));
    }
    return;
  }
  for (size_t i = 0; i < n; i += lanes) {
    const auto code = UnsignedCodes(from + i, units_per_value, random + i);
    hn::StoreU(hn::DemoteTo(du8, code), du8, codes + i);
  }
}

void DecodeWhole(bool is_signed, const uint8_t* codes, float value_per_unit, size_t n, float* to) {
  const Floats d;
  const Ints di;
  const size_t lanes = hn::Lanes(d);
  const hn::Rebind<int8_t, Floats> d8;
  const hn::Rebind<uint8_t, Floats> du8;
  const auto factor = hn::Set(d, value_per_unit);
  if (is_signed) {
    for (size_t i = 0; i < n; i += lanes) {
      const auto code = hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes + i));
      const auto level = hn::ConvertTo(d, hn::PromoteTo(di, code));
      hn::StoreU(hn::Mul(hn::Mul(level, hn::Abs(level)), factor), d, to + i);
    }
    return;
  }
  for (size_t i = 0; i < n; i += lanes) {
    const auto level = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(du8, codes + i)));
    const auto square = hn::Mul(level, level);
    hn::StoreU(hn::Mul(hn::Mul(square, square), factor), d, to + i);
  }
}

uint32_t LargestMagnitudeBits(const float* from, size_t n) {
  const Words du;
  const auto magnitude_bits = hn::Set(du, 0x7fffffffu);
  auto largest = hn::Zero(du);
  for (size_t i = 0; i < n; i += hn::Lanes(du)) {
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from + i));
    largest = hn::Max(largest, hn::And(bits, magnitude_bits));
  }
  return hn::GetLane(hn::MaxOfLanes(du, largest));
}

// The largest magnitude as bf16, rounded up, so that no code is needed past the largest. A finite
// one stays finite. One that is not zero is at least 2^-90: then the least code of either map
// decodes to a normal float, and so does its reciprocal.
HWY_INLINE uint32_t ScaleBits(uint32_t magnitude_bits) {
  if (magnitude_bits == 0) return 0;
  if (magnitude_bits > 0x7f800000) return 0x7fc0;
  if (magnitude_bits == 0x7f800000) return 0x7f80;
  constexpr uint32_t kLeast = (127 - 90) << 7, kMost = 0x7f7f;
  const uint32_t up = (magnitude_bits + 0xffff) >> 16;
  return up < kLeast ? kLeast : up > kMost ? kMost : up;
}

HWY_INLINE float FloatOfScale(uint32_t scale_bits) {
  const uint32_t bits = scale_bits << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

HWY_INLINE float UnitsOf(bool is_signed) { return is_signed ? kSignedUnits : kUnsignedUnits; }

void DecodeGroup(bool is_signed, const std::byte* scale, const uint8_t* codes, size_t n,
                 float* to) {
  uint16_t bits = 0;
  std::memcpy(&bits, scale, sizeof(bits));
  const float value_per_unit = FloatOfScale(bits) / UnitsOf(is_signed);
  if (n % hn::Lanes(Floats()) == 0) return DecodeWhole(is_signed, codes, value_per_unit, n, to);
  uint8_t codes_padded[kGroupElements + kMostLanes] = {};
  float to_padded[kGroupElements + kMostLanes];
  std::memcpy(codes_padded, codes, n);
  DecodeWhole(is_signed, codes_padded, value_per_unit, n, to_padded);
  std::memcpy(to, to_padded, n * sizeof(float));
}

void EncodePadded(bool is_signed, const float* from, const uint32_t* random, size_t n,
                  std::byte* scale, uint8_t* codes) {
  const uint32_t bits = ScaleBits(LargestMagnitudeBits(from, n));
  const auto narrow = static_cast<uint16_t>(bits);
  std::memcpy(scale, &narrow, sizeof(narrow));
  const float units_per_value = bits == 0 ? 0 : UnitsOf(is_signed) / FloatOfScale(bits);
  EncodeWhole(is_signed, from, units_per_value, random, n, codes);
}

void EncodeGroup(bool is_signed, const float* from, const uint32_t* random, size_t n,
                 std::byte* scale, uint8_t* codes) {
  if (n % hn::Lanes(Floats()) == 0) return EncodePadded(is_signed, from, random, n, scale, codes);
  float from_padded[kGroupElements + kMostLanes] = {};
  uint32_t random_padded[kGroupElements + kMostLanes] = {};
  uint8_t codes_padded[kGroupElements + kMostLanes];
  std::memcpy(from_padded, from, n * sizeof(float));
  std::memcpy(random_padded, random, n * sizeof(uint32_t));
  EncodePadded(is_signed, from_padded, random_padded, n, scale, codes_padded);
  std::memcpy(codes, codes_padded, n);
}

}  // namespace

void DecodeGroupsOnTarget(bool is_signed, const std::byte* scales, const uint8_t* codes, size_t n,
                          float* to) {
  for (size_t i = 0; i < n; i += kGroupElements, scales += sizeof(uint16_t))
    DecodeGroup(is_signed, scales, codes + i, std::min<size_t>(kGroupElements, n - i), to + i);
}

void EncodeGroupsOnTarget(bool is_signed, const float* from, const uint32_t* random_words, size_t n,
                          std::byte* scales, uint8_t* codes) {
  for (size_t i = 0; i < n; i += kGroupElements, scales += sizeof(uint16_t)) {
    EncodeGroup(is_signed, from + i, random_words + i, std::min<size_t>(kGroupElements, n - i),
                scales, codes + i);
  }
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(DecodeGroupsOnTarget);
HWY_EXPORT(EncodeGroupsOnTarget);

}  // namespace

void DecodeGroups(CodeMap map, const std::byte* scales, const uint8_t* codes, int64_t n,
                  float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeGroupsOnTarget)
  (map == CodeMap::kSigned, scales, codes, static_cast<size_t>(n), to);
}

void EncodeGroups(CodeMap map, const float* from, const uint32_t* random_words, int64_t n,
                  std::byte* scales, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeGroupsOnTarget)
  (map == CodeMap::kSigned, from, random_words, static_cast<size_t>(n), scales, codes);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
