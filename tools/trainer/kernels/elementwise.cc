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

// Since (1 + tanh(u)) / 2 = sigmoid(2u), GELU is x·sigmoid(2u). Beyond ±30 the sigmoid is 0 or 1,
// and the limit keeps the cube and its slope finite. -∞·0 is NaN, so that an overflow shows.
constexpr float kTwiceRoot = 1.5957691216057308f;  // 2·sqrt(2/π)
constexpr float kCube = 0.044715f;

HWY_INLINE FloatVector Limited(FloatTag d, FloatVector x) {
  return hn::Max(hn::Min(x, hn::Set(d, 30.0f)), hn::Set(d, -30.0f));
}

HWY_INLINE FloatVector GeluSigmoid(FloatTag d, FloatVector x) {
  const FloatVector v = Limited(d, x);
  const FloatVector cubed = hn::MulAdd(hn::Mul(hn::Set(d, kCube), hn::Mul(v, v)), v, v);
  const FloatVector s = Sigmoid(d, hn::Mul(hn::Set(d, kTwiceRoot), cubed));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -30.0f)), s);
}

void GeluForward(const float* up, int64_t n, float* out) {
  const FloatTag d;
  ForVectors(static_cast<size_t>(n), [&](size_t i, size_t count) HWY_ATTR {
    const FloatVector x = LoadUpTo(d, up + i, count);
    StoreUpTo(hn::Mul(x, GeluSigmoid(d, x)), d, out + i, count);
  });
}

void GeluBackward(int64_t n, float* up, float* out) {
  const FloatTag d;
  const FloatVector one = hn::Set(d, 1.0f);
  ForVectors(static_cast<size_t>(n), [&](size_t i, size_t count) HWY_ATTR {
    const FloatVector x = LoadUpTo(d, up + i, count);
    const FloatVector gradient = LoadUpTo(d, out + i, count);
    const FloatVector s = GeluSigmoid(d, x);
    // d(x·s)/dx = s + x·s·(1 − s)·(2u)'
    const FloatVector v = Limited(d, x);
    const FloatVector slope =
        hn::Mul(hn::Set(d, kTwiceRoot), hn::MulAdd(hn::Set(d, 3 * kCube), hn::Mul(v, v), one));
    const FloatVector rest = hn::Mul(hn::Mul(s, hn::Sub(one, s)), slope);
    StoreUpTo(hn::Mul(x, s), d, out + i, count);
    StoreUpTo(hn::Mul(gradient, hn::MulAdd(x, rest, s)), d, up + i, count);
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
HWY_EXPORT(GeluForward);
HWY_EXPORT(GeluBackward);

void SwigluForward(const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SwigluForward)(gate, up, n, out);
}

void SwigluBackward(int64_t n, float* gate, float* up, float* out) {
  HWY_DYNAMIC_DISPATCH(SwigluBackward)(n, gate, up, out);
}

void GeluForward(const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(GeluForward)(up, n, out);
}

void GeluBackward(int64_t n, float* up, float* out) {
  HWY_DYNAMIC_DISPATCH(GeluBackward)(n, up, out);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
