// SPDX-License-Identifier: Apache-2.0
//
// Helpers that the SIMD kernels share, compiled once for each instruction set: partial loads and
// stores for the ends of rows, conversions of fp16 and bf16 that are correct on every target, and
// an exp that preserves NaN.

// Highway's foreach_target includes this file once for each target, so the include guard is a
// toggle, like the guards of Highway's own files.
#if defined(SPILLWAY_TOOLS_TRAINER_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_TOOLS_TRAINER_KERNELS_VECTOR_INL_H_
#undef SPILLWAY_TOOLS_TRAINER_KERNELS_VECTOR_INL_H_
#else
#define SPILLWAY_TOOLS_TRAINER_KERNELS_VECTOR_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tools/trainer/kernels/bf16.h"
#include "tools/trainer/kernels/half.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

// Loads the first `count` lanes of a vector from memory; the others are zero.
HWY_INLINE FloatVector LoadPart(FloatTag d, const float* from, size_t count) {
  HWY_ALIGN float lanes[kMaxLanes] = {};
  std::memcpy(lanes, from, count * sizeof(float));
  return hn::Load(d, lanes);
}

HWY_INLINE void StorePart(FloatVector v, FloatTag d, float* to, size_t count) {
  HWY_ALIGN float lanes[kMaxLanes];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(float));
}

// Calls body(i, count) over [0, n) in vector steps. `count` is less than a vector only at the end.
template <class Body>
HWY_INLINE void ForVectors(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(FloatTag());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, lanes);
  if (i < n) body(i, n - i);
}

HWY_INLINE FloatVector LoadUpTo(FloatTag d, const float* from, size_t count) {
  return HWY_LIKELY(count == hn::Lanes(d)) ? hn::LoadU(d, from) : LoadPart(d, from, count);
}

HWY_INLINE void StoreUpTo(FloatVector v, FloatTag d, float* to, size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(d))) {
    hn::StoreU(v, d, to);
  } else {
    StorePart(v, d, to, count);
  }
}

// Highway's own software conversion truncates and loses infinity, so targets without the
// instruction convert with half.h.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define SPILLWAY_TARGET_HAS_HALF 1
#else
#define SPILLWAY_TARGET_HAS_HALF 0
#endif

#if SPILLWAY_TARGET_HAS_HALF
using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;

HWY_INLINE FloatVector LoadHalves(FloatTag d, const uint16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(HalfTag(), reinterpret_cast<const hwy::float16_t*>(from)));
}

HWY_INLINE void StoreHalves(FloatVector v, FloatTag /*d*/, uint16_t* to) {
  hn::StoreU(hn::DemoteTo(HalfTag(), v), HalfTag(), reinterpret_cast<hwy::float16_t*>(to));
}

// Returns, as a float, the value nearest `v` that a half can hold.
HWY_INLINE FloatVector RoundToHalf(FloatTag d, FloatVector v) {
  return hn::PromoteTo(d, hn::DemoteTo(HalfTag(), v));
}
#else
HWY_INLINE FloatVector LoadHalves(FloatTag d, const uint16_t* from) {
  HWY_ALIGN float lanes[kMaxLanes];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = FloatFromHalf(from[i]);
  return hn::Load(d, lanes);
}

HWY_INLINE void StoreHalves(FloatVector v, FloatTag d, uint16_t* to) {
  HWY_ALIGN float lanes[kMaxLanes];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) to[i] = HalfFromFloat(lanes[i]);
}

HWY_INLINE FloatVector RoundToHalf(FloatTag d, FloatVector v) {
  HWY_ALIGN uint16_t halves[kMaxLanes];
  StoreHalves(v, d, halves);
  return LoadHalves(d, halves);
}
#endif
#undef SPILLWAY_TARGET_HAS_HALF

// Converts bf16 by integer arithmetic on every target: the AVX512-BF16 instructions treat
// subnormals as zero.
HWY_INLINE FloatVector LoadBf16(FloatTag d, const uint16_t* from) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<uint16_t, FloatTag> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

// Returns the value nearest `v` that a bf16 can hold, in the upper half of each lane. The lower
// half holds leftover bits. NaN becomes quiet.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag>> NearestBf16(FloatVector v) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFFu)), hn::Set(du, 0x7F800000u));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(du, 0x00400000u)), rounded);
}

HWY_INLINE void StoreBf16(FloatVector v, FloatTag /*d*/, uint16_t* to) {
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const auto upper = hn::ShiftRight<16>(NearestBf16(v));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, upper)), d16, to);
}

HWY_INLINE FloatVector RoundToBf16(FloatTag d, FloatVector v) {
  const hn::RebindToUnsigned<FloatTag> du;
  return hn::BitCast(d, hn::And(NearestBf16(v), hn::Set(du, 0xFFFF0000u)));
}

// Returns e^v for v up to 88, and e^88 for a larger v. NaN stays NaN: Highway's Exp turns it into
// 0, which would hide an overflow from the loss scaler.
HWY_INLINE FloatVector ExpKeepingNaN(FloatTag d, FloatVector v) {
  const FloatVector e = hn::Exp(d, hn::Min(v, hn::Set(d, 88.0f)));
  return hn::IfThenElse(hn::IsNaN(v), v, e);
}

HWY_INLINE float Sum(FloatTag d, FloatVector v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_VECTOR_INL_H_
