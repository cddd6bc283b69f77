// SPDX-License-Identifier: Apache-2.0
//
// Helpers that the SIMD kernels share, compiled once for each instruction set: partial loads and
// stores for the ends of rows, and an exp that preserves NaN.

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
