// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/elementwise.h"

#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE FloatVector Sigmoid(FloatTag d, FloatVector x) {
  const FloatVector one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, ExpKeepingNaN(d, hn::Neg(x))));
}

// Both directions compute silu(gate)·up by this one expression, so that the backward's copy of the
// output has the forward's bits.
HWY_INLINE FloatVector Output(FloatVector gate, FloatVector sigmoid, FloatVector up) {
  return hn::Mul(hn::Mul(gate, sigmoid), up);
}

void SwigluForward(const float* gate, const float* up, int64_t n, float* out) {
  const FloatTag d;
  ForVectors(static_cast<size_t>(n), [&](size_t i, size_t count) HWY_ATTR {
    const FloatVector g = LoadUpTo(d, gate + i, count);
    const FloatVector u = LoadUpTo(d, up + i, count);
    StoreUpTo(Output(g, Sigmoid(d, g), u), d, out + i, count);
  });
}

void SwigluBackward(int64_t n, float* gate, float* up, float* out) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f);
  ForVectors(static_cast<size_t>(n), [&](size_t i, size_t count) HWY_ATTR {
    const FloatVector g = LoadUpTo(d, gate + i, count);
    const FloatVector u = LoadUpTo(d, up + i, count);
    const FloatVector gradient = LoadUpTo(d, out + i, count);
    const FloatVector s = Sigmoid(d, g);
    // d silu(g) / dg = s·(1 + g·(1 − s))
    const FloatVector slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
    StoreUpTo(Output(g, s, u), d, out + i, count);
    StoreUpTo(hn::Mul(hn::Mul(gradient, u), slope), d, gate + i, count);
    StoreUpTo(hn::Mul(gradient, hn::Mul(g, s)), d, up + i, count);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {

HWY_EXPORT(SwigluForward);
HWY_EXPORT(SwigluBackward);

void SwigluForward(const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SwigluForward)(gate, up, n, out);
}

void SwigluBackward(int64_t n, float* gate, float* up, float* out) {
  HWY_DYNAMIC_DISPATCH(SwigluBackward)(n, gate, up, out);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
