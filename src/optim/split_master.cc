// SPDX-License-Identifier: Apache-2.0
//
// Joining and splitting master weights, compiled once for each instruction set by Highway. The
// elements at the end of a run that do not fill a vector go through the same vector code in small
// buffers.

#include "src/optim/split_master.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/split_master.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using IntLanes = hn::Vec<Ints>;
using WordLanes = hn::Vec<Words>;

constexpr size_t kMostLanes = hn::MaxLanes(Floats());

// Joined, weight and residual are one integer: the magnitude in 256ths of the weight's last place.
// This holds for every exponent, since the bits of the next 16-bit value are the next integer.

struct HalfSplit {
  static constexpr uint32_t kInfinity = 0x7c00;
  static constexpr uint32_t kNaN = 0x7e00;
  static constexpr int kMost = 0x7bff7f;  // the largest finite weight with the largest residual
  static constexpr int kFirstNormal = 0x400 << 8;

  // The exponent of a normal half is too small by 112 for a float. A denormal counts in units of
  // 2^-32.
  static HWY_INLINE WordLanes FloatBits(IntLanes joined) {
    const Ints di;
    const Words du;
    const auto normal = hn::Add(hn::ShiftLeft<5>(hn::BitCast(du, joined)), hn::Set(du, 112u << 23));
    const auto denormal = hn::Mul(hn::ConvertTo(Floats(), joined), hn::Set(Floats(), 0x1.0p-32F));
    const auto is_denormal = hn::Lt(joined, hn::Set(di, kFirstNormal));
    return hn::BitCast(du, hn::IfThenElse(hn::RebindMask(Floats(), is_denormal), denormal,
                                          hn::BitCast(Floats(), normal)));
  }
  // `random` has 8 bits in each lane. The upper 5 are used, since 5 bits of a float are cut off. A
  // denormal half also has 5 bits to cut off once 2^-14 is added, which rounds to nearest.
  static HWY_INLINE IntLanes Joined(WordLanes magnitude, WordLanes random) {
    const Floats d;
    const Words du;
    const auto first_normal = hn::Set(du, 113u << 23);
    const auto normal = hn::Sub(magnitude, hn::Set(du, 112u << 23));
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, first_normal));
    const auto denormal = hn::Sub(hn::BitCast(du, sum), first_normal);
    const auto is_denormal =
        hn::Lt(hn::BitCast(Ints(), magnitude), hn::BitCast(Ints(), first_normal));
    const auto rebased = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
    return hn::BitCast(Ints(), hn::ShiftRight<5>(hn::Add(rebased, hn::ShiftRight<3>(random))));
  }
};

struct Bf16Split {
  static constexpr uint32_t kInfinity = 0x7f80;
  static constexpr uint32_t kNaN = 0x7fc0;
  static constexpr int kMost = 0x7f7f7f;

  static HWY_INLINE WordLanes FloatBits(IntLanes joined) {
    return hn::ShiftLeft<8>(hn::BitCast(Words(), joined));
  }
  static HWY_INLINE IntLanes Joined(WordLanes magnitude, WordLanes random) {
    return hn::BitCast(Ints(), hn::ShiftRight<8>(hn::Add(magnitude, random)));
  }
};

template <class Split>
HWY_INLINE void DecodeMasterVector(const uint16_t* weights, const uint8_t* residuals, float* to) {
  const Ints di;
  const Words du;
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<int8_t, Floats> d8;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, weights));
  const auto residual =
      hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(residuals)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto joined = hn::Max(hn::Add(hn::ShiftLeft<8>(magnitude), residual), hn::Zero(di));
  const auto infinity = hn::Set(di, static_cast<int32_t>(Split::kInfinity));
  auto result = hn::BitCast(di, Split::FloatBits(joined));
  result = hn::IfThenElse(hn::Lt(magnitude, infinity), result, hn::Set(di, 0x7f800000));
  result = hn::IfThenElse(hn::Gt(magnitude, infinity), hn::Set(di, 0x7fc00000), result);
  hn::StoreU(hn::BitCast(Floats(), hn::Or(hn::BitCast(du, result), sign)), Floats(), to);
}

template <class Split>
HWY_INLINE void EncodeMasterVector(const float* masters, const uint32_t* random_words,
                                   uint16_t* weights, uint8_t* residuals) {
  const Ints di;
  const Words du;
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::Rebind<int8_t, Floats> d8;
  const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(masters));
  const auto random = hn::And(hn::LoadU(du, random_words), hn::Set(du, 0xffu));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto joined = hn::Min(Split::Joined(magnitude, random), hn::Set(di, Split::kMost));
  const auto nearest = hn::ShiftRight<8>(hn::Add(joined, hn::Set(di, 0x80)));
  auto residual = hn::Sub(joined, hn::ShiftLeft<8>(nearest));
  // Values that are not finite.
  const auto infinity = hn::Set(di, 0x7f800000);
  const auto is_finite = hn::Lt(hn::BitCast(di, magnitude), infinity);
  const auto is_nan = hn::Gt(hn::BitCast(di, magnitude), infinity);
  residual = hn::IfThenElseZero(is_finite, residual);
  auto weight =
      hn::IfThenElse(is_finite, nearest, hn::Set(di, static_cast<int32_t>(Split::kInfinity)));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  weight = hn::Or(weight, hn::BitCast(di, sign));
  weight = hn::IfThenElse(is_nan, hn::Set(di, static_cast<int32_t>(Split::kNaN)), weight);
  hn::StoreU(hn::DemoteTo(d16, weight), d16, weights);
  hn::StoreU(hn::DemoteTo(d8, residual), d8, reinterpret_cast<int8_t*>(residuals));
}

template <class Split>
void DecodeMastersOf(const uint16_t* weights, const uint8_t* residuals, size_t n, float* to) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) DecodeMasterVector<Split>(weights + i, residuals + i, to + i);
  if (i == n) return;
  uint16_t weights_tail[kMostLanes] = {};
  uint8_t residuals_tail[kMostLanes] = {};
  float to_tail[kMostLanes];
  std::memcpy(weights_tail, weights + i, (n - i) * sizeof(uint16_t));
  std::memcpy(residuals_tail, residuals + i, n - i);
  DecodeMasterVector<Split>(weights_tail, residuals_tail, to_tail);
  std::memcpy(to + i, to_tail, (n - i) * sizeof(float));
}

template <class Split>
void EncodeMastersOf(const float* masters, const uint32_t* random_words, size_t n,
                     uint16_t* weights, uint8_t* residuals) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    EncodeMasterVector<Split>(masters + i, random_words + i, weights + i, residuals + i);
  if (i == n) return;
  float masters_tail[kMostLanes] = {};
  uint32_t random_tail[kMostLanes] = {};
  uint16_t weights_tail[kMostLanes];
  uint8_t residuals_tail[kMostLanes];
  std::memcpy(masters_tail, masters + i, (n - i) * sizeof(float));
  std::memcpy(random_tail, random_words + i, (n - i) * sizeof(uint32_t));
  EncodeMasterVector<Split>(masters_tail, random_tail, weights_tail, residuals_tail);
  std::memcpy(weights + i, weights_tail, (n - i) * sizeof(uint16_t));
  std::memcpy(residuals + i, residuals_tail, n - i);
}

}  // namespace

void DecodeMastersOnTarget(bool is_half, const uint16_t* weights, const uint8_t* residuals,
                           size_t n, float* to) {
  return is_half ? DecodeMastersOf<HalfSplit>(weights, residuals, n, to)
                 : DecodeMastersOf<Bf16Split>(weights, residuals, n, to);
}

void EncodeMastersOnTarget(bool is_half, const float* masters, const uint32_t* random_words,
                           size_t n, uint16_t* weights, uint8_t* residuals) {
  return is_half ? EncodeMastersOf<HalfSplit>(masters, random_words, n, weights, residuals)
                 : EncodeMastersOf<Bf16Split>(masters, random_words, n, weights, residuals);
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(DecodeMastersOnTarget);
HWY_EXPORT(EncodeMastersOnTarget);

}  // namespace

void DecodeMasters(DType dtype, const void* weights, const uint8_t* residuals, int64_t n,
                   float* masters) {
  HWY_DYNAMIC_DISPATCH(DecodeMastersOnTarget)
  (dtype == DType::kF16, static_cast<const uint16_t*>(weights), residuals, static_cast<size_t>(n),
   masters);
}

void EncodeMasters(DType dtype, const float* masters, const uint32_t* random_words, int64_t n,
                   void* weights, uint8_t* residuals) {
  HWY_DYNAMIC_DISPATCH(EncodeMastersOnTarget)
  (dtype == DType::kF16, masters, random_words, static_cast<size_t>(n),
   static_cast<uint16_t*>(weights), residuals);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
