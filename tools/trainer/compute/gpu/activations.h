// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU, GELU (the tanh approximation) and their gradients, on contiguous matrices. A gradient
// also computes the forward's result again, by the same code, so with the same bits.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ACTIVATIONS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ACTIVATIONS_H_

#include <cmath>
#include <cstdint>

#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/elementwise_kernel.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

SPILLWAY_SIMT inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// --- SwiGLU: silu(gate)·up ---

SPILLWAY_SIMT inline float SwigluOf(float gate, float sigmoid, float up) {
  return gate * sigmoid * up;
}

struct SwigluElements {
  Matrix gate, up, out;

  SPILLWAY_SIMT int64_t elements() const { return out.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const {
    const float g = gate.Get(i);
    out.Set(i, SwigluOf(g, Sigmoid(g), up.Get(i)));
  }
};
using Swiglu = Elementwise<SwigluElements>;

// On entry `out` has the gradient of the result. On return `gate` and `up` have their gradients,
// and `out` the result.
struct SwigluGradientElements {
  Matrix gate, up, out;

  SPILLWAY_SIMT int64_t elements() const { return out.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const {
    const float g = gate.Get(i);
    const float u = up.Get(i);
    const float gradient = out.Get(i);
    const float s = Sigmoid(g);
    const float slope = s * (1.0f + g * (1.0f - s));  // of silu
    out.Set(i, SwigluOf(g, s, u));
    gate.Set(i, gradient * u * slope);
    up.Set(i, gradient * (g * s));
  }
};
using SwigluGradient = Elementwise<SwigluGradientElements>;

// --- GELU ---

// Since (1 + tanh(u)) / 2 = sigmoid(2u), GELU is x·sigmoid(2u). Beyond ±30 the sigmoid is 0 or 1,
// and the limit keeps the slope finite. -∞·0 is NaN, so that an overflow shows.
struct GeluParts {
  float sigmoid;
  float slope;  // of 2u

  SPILLWAY_SIMT explicit GeluParts(float x) {
    constexpr float kTwiceRoot = 1.5957691216057308f;  // 2·sqrt(2/π)
    constexpr float kCube = 0.044715f;
    const float v = x > 30.0f ? 30.0f : x < -30.0f ? -30.0f : x;
    sigmoid = Sigmoid(kTwiceRoot * (v + kCube * v * v * v));
    slope = kTwiceRoot * (1.0f + 3.0f * kCube * v * v);
  }
};

struct GeluElements {
  Matrix up, out;

  SPILLWAY_SIMT int64_t elements() const { return out.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const {
    const float x = up.Get(i);
    out.Set(i, x * GeluParts(x).sigmoid);
  }
};
using Gelu = Elementwise<GeluElements>;

// As SwigluGradientElements.
struct GeluGradientElements {
  Matrix up, out;

  SPILLWAY_SIMT int64_t elements() const { return out.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const {
    const float x = up.Get(i);
    const float gradient = out.Get(i);
    const GeluParts parts(x);
    const float s = parts.sigmoid;
    out.Set(i, x * s);
    up.Set(i, gradient * (s + x * (s * (1.0f - s) * parts.slope)));
  }
};
using GeluGradient = Elementwise<GeluGradientElements>;

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ACTIVATIONS_H_
