// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/convert.h"

#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "src/base/half_floats-inl.h"
#include "src/base/half_floats.h"
#include "tools/trainer/kernels/vector-inl.h"

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_CC_ONCE_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_CC_ONCE_
namespace spillway::trainer {

// The kernels of one instruction set for one element type.
struct ElementKernels {
  void (*to_floats)(const void* from, int64_t n, float* to);
  void (*from_floats)(const float* from, int64_t n, void* to);
  void (*round)(float* values, int64_t n);
  void (*add)(const float* from, int64_t n, void* to);
  double (*sum_of_squares)(const void* values, int64_t n);
};

}  // namespace spillway::trainer
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

namespace lanes = base::HWY_NAMESPACE;

// Calls vector(i) for each whole vector of [0, n) and single(i) for each remaining element.
template <class Vector, class Single>
HWY_INLINE void Cover(int64_t n, const Vector& vector, const Single& single) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(FloatTag()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) vector(i);
  for (; i < n; ++i) single(i);
}

// The element types as the kernels below use them: how one element, or a vector of them, is
// converted to floats and from floats.
struct Fp32 {
  using Stored = float;
  static float Widen(float v) { return v; }
  static float Narrow(float v) { return v; }
  HWY_INLINE static FloatVector Load(FloatTag d, const float* from) { return hn::LoadU(d, from); }
  HWY_INLINE static void Store(FloatVector v, FloatTag d, float* to) { hn::StoreU(v, d, to); }
  HWY_INLINE static FloatVector Round(FloatTag /*d*/, FloatVector v) { return v; }
};

struct Fp16 {
  using Stored = uint16_t;
  static float Widen(uint16_t v) { return base::HalfToFloat(v); }
  static uint16_t Narrow(float v) { return base::FloatToHalf(v); }
  HWY_INLINE static FloatVector Load(FloatTag d, const uint16_t* from) {
    return lanes::LoadHalf(d, from);
  }
  HWY_INLINE static void Store(FloatVector v, FloatTag d, uint16_t* to) {
    lanes::StoreHalf(d, v, to);
  }
  HWY_INLINE static FloatVector Round(FloatTag d, FloatVector v) {
    return lanes::RoundToHalf(d, v);
  }
};

struct Bf16 {
  using Stored = uint16_t;
  static float Widen(uint16_t v) { return base::Bf16ToFloat(v); }
  static uint16_t Narrow(float v) { return base::FloatToBf16(v); }
  HWY_INLINE static FloatVector Load(FloatTag d, const uint16_t* from) {
    return lanes::LoadBf16(d, from);
  }
  HWY_INLINE static void Store(FloatVector v, FloatTag d, uint16_t* to) {
    lanes::StoreBf16(d, v, to);
  }
  HWY_INLINE static FloatVector Round(FloatTag d, FloatVector v) {
    return lanes::RoundToBf16(d, v);
  }
};

template <class Element>
void ToFloats(const void* from, int64_t n, float* to) {
  const FloatTag d;
  const auto* const stored = static_cast<const typename Element::Stored*>(from);
  Cover(
      n, [&](int64_t i) HWY_ATTR { hn::StoreU(Element::Load(d, stored + i), d, to + i); },
      [&](int64_t i) { to[i] = Element::Widen(stored[i]); });
}

template <class Element>
void FromFloats(const float* from, int64_t n, void* to) {
  const FloatTag d;
  auto* const stored = static_cast<typename Element::Stored*>(to);
  Cover(
      n, [&](int64_t i) HWY_ATTR { Element::Store(hn::LoadU(d, from + i), d, stored + i); },
      [&](int64_t i) { stored[i] = Element::Narrow(from[i]); });
}

template <class Element>
void Round(float* values, int64_t n) {
  const FloatTag d;
  Cover(
      n,
      [&](int64_t i)
          HWY_ATTR { hn::StoreU(Element::Round(d, hn::LoadU(d, values + i)), d, values + i); },
      [&](int64_t i) { values[i] = Element::Widen(Element::Narrow(values[i])); });
}

template <class Element>
void Add(const float* from, int64_t n, void* to) {
  const FloatTag d;
  auto* const stored = static_cast<typename Element::Stored*>(to);
  Cover(
      n,
      [&](int64_t i) HWY_ATTR {
        Element::Store(hn::Add(Element::Load(d, stored + i), hn::LoadU(d, from + i)), d,
                       stored + i);
      },
      [&](int64_t i) { stored[i] = Element::Narrow(Element::Widen(stored[i]) + from[i]); });
}

using DoubleTag = hn::ScalableTag<double>;

// Four running sums hide the latency of the additions.
double SumOfSquaresFloats(const float* values, int64_t n) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> d_float;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  const auto square = [&](int64_t i, hn::Vec<DoubleTag> sum) HWY_ATTR {
    const auto v = hn::PromoteTo(d, hn::LoadU(d_float, values + i));
    return hn::MulAdd(v, v, sum);
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = square(i, sum0);
    sum1 = square(i + lanes, sum1);
    sum2 = square(i + 2 * lanes, sum2);
    sum3 = square(i + 3 * lanes, sum3);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < n; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

template <class Element>
double SumOfSquares(const void* values, int64_t n) {
  constexpr int64_t kPiece = 1024;
  const auto* const stored = static_cast<const typename Element::Stored*>(values);
  HWY_ALIGN float floats[kPiece];
  double total = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = HWY_MIN(kPiece, n - i);
    ToFloats<Element>(stored + i, count, floats);
    total += SumOfSquaresFloats(floats, count);
  }
  return total;
}

template <>
double SumOfSquares<Fp32>(const void* values, int64_t n) {
  return SumOfSquaresFloats(static_cast<const float*>(values), n);
}

template <class Element>
constexpr ElementKernels kKernelsOf = {ToFloats<Element>, FromFloats<Element>, Round<Element>,
                                       Add<Element>, SumOfSquares<Element>};

}  // namespace

const ElementKernels& KernelsOf(DType type) {
  switch (type) {
    case DType::kF16: return kKernelsOf<Fp16>;
    case DType::kBF16: return kKernelsOf<Bf16>;
    default: return kKernelsOf<Fp32>;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {
namespace {

HWY_EXPORT(KernelsOf);

const ElementKernels& Kernels(DType type) { return HWY_DYNAMIC_DISPATCH(KernelsOf)(type); }

}  // namespace

void ToFloats(DType type, const void* from, int64_t n, float* to) {
  Kernels(type).to_floats(from, n, to);
}

void FromFloats(DType type, const float* from, int64_t n, void* to) {
  Kernels(type).from_floats(from, n, to);
}

void RoundTo(DType type, float* values, int64_t n) {
  if (type != DType::kF32) Kernels(type).round(values, n);
}

void AddTo(DType type, const float* from, int64_t n, void* to) { Kernels(type).add(from, n, to); }

double SumOfSquares(DType type, const void* values, int64_t n) {
  return Kernels(type).sum_of_squares(values, n);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
