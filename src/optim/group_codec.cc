// SPDX-License-Identifier: Apache-2.0
//
// The codes of groups, compiled once for each instruction set by Highway. A group that does not
// fill its vectors goes through the same vector code in small buffers. The codecs compute values
// and look none up: a table would cost a load for each element.

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

// The bits of an element's random word that round signed and unsigned codes, counted from the
// lowest bit. The bits below them round the residual.
constexpr int kSignedFrom = 8, kSignedBits = 10;
constexpr int kUnsignedFrom = 18, kUnsignedBits = 14;

// Groups whose scales are computed before any of their elements is encoded. The chain of dependent
// instructions from a group's largest magnitude to its first code is long, and the processor
// overlaps the chains of several groups.
constexpr size_t kGroupsAtOnce = 8;

constexpr size_t kScaleBytes = sizeof(uint16_t);

// The scale in the units in which codes are decoded. It is what the largest code decodes to, so no
// value is rounded up past that code.
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

constexpr size_t kMostLanes = hn::MaxLanes(Floats());

// A code is the root of a value. The root is cut off to the code below it, and the random bits
// decide between that code and the one above. An approximate root is enough: rounded, it is the
// code below or the one above, and it is the one above if its power exceeds the value.

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
// The relative error is at most 2^-11. The result for 0 is infinite.
HWY_INLINE FloatLanes NearReciprocalRoot(FloatLanes value) {
  return hn::ApproximateReciprocalSqrt(value);
}
#else
HWY_INLINE FloatLanes NearReciprocalRoot(FloatLanes value) {
  return hn::Div(hn::Set(Floats(), 1.0F), hn::Sqrt(value));
}
#endif
HWY_INLINE FloatLanes NearRoot(FloatLanes value) {
  const auto at_least = hn::Max(value, hn::Set(Floats(), 0x1.0p-100F));
  return hn::Mul(at_least, NearReciprocalRoot(at_least));
}
HWY_INLINE FloatLanes NearFourthRoot(FloatLanes value) {
  return NearReciprocalRoot(NearReciprocalRoot(value));
}

// Returns numbers that are uniform in (0, 1), from kBits bits of a random word, of which kFrom is
// the lowest. They are the middles of 2^kBits equal parts. The bits become the upper ones of the
// fraction of a float in [1, 2).
template <int kFrom, int kBits>
HWY_INLINE FloatLanes Uniform(const uint32_t* random_words) {
  const Floats d;
  const Words du;
  constexpr int kUp = 23 - kBits - kFrom;
  auto bits = hn::LoadU(du, random_words);
  if constexpr (kUp > 0) bits = hn::ShiftLeft<kUp>(bits);
  if constexpr (kUp < 0) bits = hn::ShiftRight<-kUp>(bits);
  constexpr uint32_t kFraction = ((uint32_t{1} << kBits) - 1) << (23 - kBits);
  const auto from_one = hn::OrAnd(hn::Set(du, 0x3f800000u), bits, hn::Set(du, kFraction));
  constexpr float kHalfPart = 0.5F / static_cast<float>(1 << kBits);
  return hn::Sub(hn::BitCast(d, from_one), hn::Set(d, 1.0F - kHalfPart));
}

// Stores the lowest byte of whole numbers in two's complement. It is the lowest byte of the float's
// bits after 1.5 · 2^23 is added.
HWY_INLINE void StoreCodes(FloatLanes level, uint8_t* codes) {
  const Words du;
  const hn::Rebind<uint8_t, Floats> d8;
  const auto shifted = hn::BitCast(du, hn::Add(level, hn::Set(Floats(), 0x1.8p23F)));
  hn::StoreU(hn::TruncateTo(d8, shifted), d8, codes);
}

// Returns the values limited to `most`. NaN becomes `most`.
HWY_INLINE FloatLanes Limited(FloatLanes value, float most) {
  const auto limit = hn::Set(Floats(), most);
  return hn::IfThenElse(hn::Le(value, limit), value, limit);
}

HWY_INLINE FloatLanes SignedLevels(const float* from, float units_per_value,
                                   const uint32_t* random) {
  const Floats d;
  const auto one = hn::Set(d, 1.0F);
  const auto value = hn::LoadU(d, from);
  const auto units = Limited(hn::Mul(hn::Abs(value), hn::Set(d, units_per_value)), kSignedUnits);
  const auto near = hn::Round(NearRoot(units));
  const auto is_above = hn::Gt(hn::Mul(near, near), units);
  const auto below = hn::Sub(near, hn::IfThenElseZero(is_above, one));
  const auto rest = hn::Sub(units, hn::Mul(below, below));
  const auto step = hn::Add(hn::Add(below, below), one);
  const auto goes_up = hn::Gt(rest, hn::Mul(Uniform<kSignedFrom, kSignedBits>(random), step));
  return hn::CopySignToAbs(hn::Add(below, hn::IfThenElseZero(goes_up, one)), value);
}

HWY_INLINE FloatLanes FourthPower(FloatLanes value) {
  const auto square = hn::Mul(value, value);
  return hn::Mul(square, square);
}

HWY_INLINE FloatLanes UnsignedLevels(const float* from, float units_per_value,
                                     const uint32_t* random) {
  const Floats d;
  const auto one = hn::Set(d, 1.0F);
  const auto given = hn::LoadU(d, from);
  const auto is_positive = hn::Gt(given, hn::Zero(d));
  const auto value = hn::IfThenElseZero(is_positive, given);
  const auto units = Limited(hn::Mul(value, hn::Set(d, units_per_value)), kUnsignedUnits);
  const auto near = hn::Round(NearFourthRoot(units));
  const auto is_above = hn::Gt(FourthPower(near), units);
  const auto below = hn::Sub(near, hn::IfThenElseZero(is_above, one));
  const auto above = hn::Add(below, one);
  const auto low = FourthPower(below), high = FourthPower(above);
  const auto part = hn::Mul(Uniform<kUnsignedFrom, kUnsignedBits>(random), hn::Sub(high, low));
  const auto goes_up = hn::Gt(hn::Sub(units, low), part);
  const auto level = hn::IfThenElse(goes_up, above, below);
  return hn::Max(level, hn::IfThenElseZero(is_positive, one));
}

// Encodes a group that fills its vectors.
HWY_INLINE void EncodeWhole(bool is_signed, const float* from, float units_per_value,
                            const uint32_t* random, size_t n, uint8_t* codes) {
  const size_t lanes = hn::Lanes(Floats());
  if (is_signed) {
    for (size_t i = 0; i < n; i += lanes)
      StoreCodes(SignedLevels(from + i, units_per_value, random + i), codes + i);
    return;
  }
  for (size_t i = 0; i < n; i += lanes)
    StoreCodes(UnsignedLevels(from + i, units_per_value, random + i), codes + i);
}

HWY_INLINE void DecodeWhole(bool is_signed, const uint8_t* codes, float value_per_unit, size_t n,
                            float* to) {
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

HWY_INLINE uint32_t LargestMagnitudeBits(const float* from, size_t n) {
  const Words du;
  const auto magnitude_bits = hn::Set(du, 0x7fffffffu);
  auto largest = hn::Zero(du);
  for (size_t i = 0; i < n; i += hn::Lanes(du)) {
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from + i));
    largest = hn::Max(largest, hn::And(bits, magnitude_bits));
  }
  return hn::GetLane(hn::MaxOfLanes(du, largest));
}

// Returns the largest magnitude as bf16, rounded up, so that no element exceeds the largest code;
// on the growing map it is rounded up to a power of two. A finite magnitude stays finite. A scale
// that is not zero is at least 2^-90: then the least code of any map decodes to a normal float,
// whose reciprocal is also normal.
HWY_INLINE uint32_t ScaleBits(CodeMap map, uint32_t magnitude_bits) {
  if (magnitude_bits == 0) return 0;
  if (magnitude_bits > 0x7f800000) return 0x7fc0;
  if (magnitude_bits == 0x7f800000) return 0x7f80;
  constexpr uint32_t kLeast = (127 - 90) << 7, kMost = 0x7f7f;
  const uint32_t up = map == CodeMap::kGrowing ? (magnitude_bits + 0x7fffff) >> 23 << 7
                                               : (magnitude_bits + 0xffff) >> 16;
  return up < kLeast ? kLeast : up > kMost ? kMost : up;
}

HWY_INLINE float FloatOfScale(uint32_t scale_bits) {
  const uint32_t bits = scale_bits << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

HWY_INLINE float UnitsOf(bool is_signed) { return is_signed ? kSignedUnits : kUnsignedUnits; }

HWY_INLINE float ValuePerUnit(bool is_signed, const std::byte* scale) {
  uint16_t bits = 0;
  std::memcpy(&bits, scale, sizeof(bits));
  return FloatOfScale(bits) / UnitsOf(is_signed);
}

// Stores a group's scale, and returns the units of decoded codes per value: 0 if the scale is zero.
HWY_INLINE float UnitsPerValue(CodeMap map, const float* from, size_t n, std::byte* scale) {
  const uint32_t bits = ScaleBits(map, LargestMagnitudeBits(from, n));
  const auto narrow = static_cast<uint16_t>(bits);
  std::memcpy(scale, &narrow, sizeof(narrow));
  return bits == 0 ? 0 : UnitsOf(map == CodeMap::kSigned) / FloatOfScale(bits);
}

// Decodes a group of at most kGroupElements in padded buffers.
void DecodePart(bool is_signed, const std::byte* scale, const uint8_t* codes, size_t n, float* to) {
  uint8_t codes_padded[kGroupElements + kMostLanes] = {};
  float to_padded[kGroupElements + kMostLanes];
  std::memcpy(codes_padded, codes, n);
  DecodeWhole(is_signed, codes_padded, ValuePerUnit(is_signed, scale), n, to_padded);
  std::memcpy(to, to_padded, n * sizeof(float));
}

void EncodePart(CodeMap map, const float* from, const uint32_t* random, size_t n, std::byte* scale,
                uint8_t* codes) {
  float from_padded[kGroupElements + kMostLanes] = {};
  uint32_t random_padded[kGroupElements + kMostLanes] = {};
  uint8_t codes_padded[kGroupElements + kMostLanes];
  std::memcpy(from_padded, from, n * sizeof(float));
  std::memcpy(random_padded, random, n * sizeof(uint32_t));
  const float units_per_value = UnitsPerValue(map, from_padded, n, scale);
  EncodeWhole(map == CodeMap::kSigned, from_padded, units_per_value, random_padded, n,
              codes_padded);
  std::memcpy(codes, codes_padded, n);
}

// Decodes groups of kGroupElements that fill their vectors.
HWY_INLINE void DecodeGroups(bool is_signed, const std::byte* scales, const uint8_t* codes,
                             size_t groups, float* to) {
  for (size_t g = 0; g < groups; ++g) {
    const size_t i = g * kGroupElements;
    DecodeWhole(is_signed, codes + i, ValuePerUnit(is_signed, scales + g * kScaleBytes),
                kGroupElements, to + i);
  }
}

HWY_INLINE void EncodeGroups(CodeMap map, const float* from, const uint32_t* random, size_t groups,
                             std::byte* scales, uint8_t* codes) {
  float units_per_value[kGroupsAtOnce];
  for (size_t first = 0; first < groups; first += kGroupsAtOnce) {
    const size_t count = std::min(kGroupsAtOnce, groups - first);
    for (size_t g = 0; g < count; ++g) {
      units_per_value[g] = UnitsPerValue(map, from + (first + g) * kGroupElements, kGroupElements,
                                         scales + (first + g) * kScaleBytes);
    }
    for (size_t g = 0; g < count; ++g) {
      const size_t i = (first + g) * kGroupElements;
      EncodeWhole(map == CodeMap::kSigned, from + i, units_per_value[g], random + i, kGroupElements,
                  codes + i);
    }
  }
}

// Returns the number of groups among n elements that fill their vectors.
HWY_INLINE size_t WholeGroups(size_t n) {
  return kGroupElements % hn::Lanes(Floats()) == 0 ? n / kGroupElements : 0;
}

}  // namespace

void DecodeGroupsOnTarget(bool is_signed, const std::byte* scales, const uint8_t* codes, size_t n,
                          float* to) {
  const size_t whole = WholeGroups(n);
  if (is_signed) {  // two calls, so that each loop has one kind of element
    DecodeGroups(true, scales, codes, whole, to);
  } else {
    DecodeGroups(false, scales, codes, whole, to);
  }
  for (size_t i = whole * kGroupElements; i < n; i += kGroupElements) {
    DecodePart(is_signed, scales + i / kGroupElements * kScaleBytes, codes + i,
               std::min<size_t>(kGroupElements, n - i), to + i);
  }
}

void EncodeGroupsOnTarget(CodeMap map, const float* from, const uint32_t* random_words, size_t n,
                          std::byte* scales, uint8_t* codes) {
  const size_t whole = WholeGroups(n);
  switch (map) {  // a call for each, as above
    case CodeMap::kSigned:
      EncodeGroups(CodeMap::kSigned, from, random_words, whole, scales, codes);
      break;
    case CodeMap::kUnsigned:
      EncodeGroups(CodeMap::kUnsigned, from, random_words, whole, scales, codes);
      break;
    case CodeMap::kGrowing:
      EncodeGroups(CodeMap::kGrowing, from, random_words, whole, scales, codes);
      break;
  }
  for (size_t i = whole * kGroupElements; i < n; i += kGroupElements) {
    EncodePart(map, from + i, random_words + i, std::min<size_t>(kGroupElements, n - i),
               scales + i / kGroupElements * kScaleBytes, codes + i);
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
  (map, from, random_words, static_cast<size_t>(n), scales, codes);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
