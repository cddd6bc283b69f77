// SPDX-License-Identifier: Apache-2.0
//
// The codes of blocks, compiled once for each instruction set by Highway. A code is found without a
// search. The values of a decade are evenly spaced, so one multiplication and one addition give the
// level of a magnitude, counted from zero, and cutting off the fraction rounds to the nearest
// level. Six comparisons select the decade.

#include "src/optim/block_codec.h"

#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/block_codec.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using FloatLanes = hn::Vec<Floats>;

// Returns the levels of magnitudes over the scale. A ratio above 1 and NaN get the level of 1.
HWY_INLINE FloatLanes LevelsOf(const CodeLevels& levels, FloatLanes magnitude, FloatLanes scale) {
  const Floats d;
  const auto ratio = hn::Div(magnitude, scale);
  const auto one = hn::Set(d, 1.0F);
  const auto x = hn::IfThenElse(hn::Le(ratio, one), ratio, one);
  auto slope = hn::Set(d, levels.decades[0].slope);
  auto offset = hn::Set(d, levels.decades[0].offset);
  auto last = hn::Set(d, levels.decades[0].last);
  for (int i = 1; i < CodeLevels::kDecades; ++i) {
    const CodeLevels::Decade& decade = levels.decades[i];
    const auto is_in = hn::Ge(x, hn::Set(d, decade.from));
    slope = hn::IfThenElse(is_in, hn::Set(d, decade.slope), slope);
    offset = hn::IfThenElse(is_in, hn::Set(d, decade.offset), offset);
    last = hn::IfThenElse(is_in, hn::Set(d, decade.last), last);
  }
  auto level = hn::Min(hn::Add(hn::Mul(x, slope), offset), last);
  level =
      hn::IfThenElse(hn::Ge(x, hn::Set(d, levels.one_from)), hn::Set(d, levels.one_level), level);
  // The ratio of a magnitude that is not zero may underflow to zero.
  const auto is_zero = hn::And(hn::Lt(x, hn::Set(d, levels.decades[0].from)),
                               hn::Le(magnitude, hn::Set(d, levels.most_zero)));
  return hn::IfThenZeroElse(is_zero, hn::Max(level, hn::Set(d, levels.least_level)));
}

// Writes the codes of one vector of elements.
HWY_INLINE void EncodeVector(const CodeLevels& levels, FloatLanes scale, const float* from,
                             uint8_t* to) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<uint8_t, Floats> d8;
  const auto value = hn::LoadU(d, from);
  const auto level = hn::ConvertTo(di, LevelsOf(levels, hn::Abs(value), scale));
  const auto zero_code = hn::Set(di, levels.zero_code);
  // The signed map has no −1, and the unsigned map has no values below zero.
  const auto below = hn::Sub(zero_code, hn::Min(level, zero_code));
  const auto is_negative = hn::Lt(hn::BitCast(di, value), hn::Zero(di));
  const auto code = hn::IfThenElse(is_negative, below, hn::Add(zero_code, level));
  hn::StoreU(hn::DemoteTo(d8, code), d8, to);
}

}  // namespace

// Returns the largest magnitude, or NaN if any element is NaN. The bits of magnitudes, read as
// unsigned integers, are in the order of the magnitudes.
float LargestMagnitudeOnTarget(const float* from, size_t n) {
  const hn::RebindToUnsigned<Floats> du;
  const size_t lanes = hn::Lanes(Floats());
  const auto magnitude_bits = hn::Set(du, 0x7fffffffu);
  auto largest = hn::Zero(du);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from + i));
    largest = hn::Max(largest, hn::And(bits, magnitude_bits));
  }
  uint32_t tail[hn::MaxLanes(Floats())] = {};
  std::memcpy(tail, from + i, (n - i) * sizeof(float));
  largest = hn::Max(largest, hn::And(hn::LoadU(du, tail), magnitude_bits));
  const uint32_t bits = hn::GetLane(hn::MaxOfLanes(du, largest));
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void EncodeOnTarget(const CodeLevels& levels, float divisor, const float* from, size_t n,
                    uint8_t* to) {
  const size_t lanes = hn::Lanes(Floats());
  const auto scale = hn::Set(Floats(), divisor);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) EncodeVector(levels, scale, from + i, to + i);
  if (i == n) return;
  float from_tail[hn::MaxLanes(Floats())] = {};
  uint8_t to_tail[hn::MaxLanes(Floats())];
  std::memcpy(from_tail, from + i, (n - i) * sizeof(float));
  EncodeVector(levels, scale, from_tail, to_tail);
  std::memcpy(to + i, to_tail, n - i);
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(LargestMagnitudeOnTarget);
HWY_EXPORT(EncodeOnTarget);

CodeLevels MakeLevels(CodeMap map) {
  CodeLevels levels;
  const bool is_signed = map == CodeMap::kSigned;
  levels.zero_code = is_signed ? kSignedZero : 0;
  levels.least_level = is_signed ? 0 : 1;
  levels.most_zero = is_signed ? std::numeric_limits<float>::infinity() : 0;
  int first_level = 1;
  double before = 0;  // value of the previous level
  for (int i = 0; i < CodeLevels::kDecades; ++i) {
    const int parts = PartsOfDecade(map, i);
    levels.decades[i] = {.from = static_cast<float>((before + ValueIn(map, i, 0)) / 2),
                         .slope = static_cast<float>(parts / (0.9 * kDecadeTops[i])),
                         .offset = static_cast<float>(first_level - parts / 9.0),
                         .last = static_cast<float>(first_level + parts - 1)};
    before = ValueIn(map, i, parts - 1);
    first_level += parts;
  }
  // On the unsigned map, a value that is not zero is never rounded to zero.
  if (!is_signed) levels.decades[0].from = std::numeric_limits<float>::denorm_min();
  levels.one_from = static_cast<float>((before + 1) / 2);
  levels.one_level = static_cast<float>(first_level);
  return levels;
}

// Returns the least power of two that is not below a magnitude. Zero, NaN and what no power of two
// bounds stay.
float PowerOfTwoFrom(float magnitude) {
  constexpr float kMost = 0x1p127F;
  if (!(magnitude > 0) || magnitude > kMost) return magnitude;
  uint32_t bits = 0;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  bits = (bits + 0x7fffff) & 0x7f800000;
  float power = 0;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

}  // namespace

const CodeLevels& LevelsOfCodes(CodeMap map) {
  static const CodeLevels signed_levels = MakeLevels(CodeMap::kSigned);
  static const CodeLevels unsigned_levels = MakeLevels(CodeMap::kUnsigned);
  return map == CodeMap::kSigned ? signed_levels : unsigned_levels;
}

const CodeTable& CodeValues(CodeMap map) {
  static constexpr CodeTable kSignedValues = MakeCodeTable(CodeMap::kSigned);
  static constexpr CodeTable kUnsignedValues = MakeCodeTable(CodeMap::kUnsigned);
  return map == CodeMap::kSigned ? kSignedValues : kUnsignedValues;
}

void DecodeBlock(CodeMap map, const std::byte* scale, const uint8_t* codes, int64_t n, float* to) {
  float factor = 0;
  std::memcpy(&factor, scale, sizeof(factor));
  const CodeTable& values = CodeValues(map);
  for (int64_t i = 0; i < n; ++i) to[i] = factor * values[codes[i]];
}

void EncodeBlock(CodeMap map, const float* from, int64_t n, std::byte* scale, uint8_t* codes) {
  const auto count = static_cast<size_t>(n);
  const float magnitude = HWY_DYNAMIC_DISPATCH(LargestMagnitudeOnTarget)(from, count);
  const float largest = map == CodeMap::kGrowing ? PowerOfTwoFrom(magnitude) : magnitude;
  std::memcpy(scale, &largest, sizeof(largest));
  const float divisor = largest == 0 ? 1 : largest;
  HWY_DYNAMIC_DISPATCH(EncodeOnTarget)(LevelsOfCodes(map), divisor, from, count, codes);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
