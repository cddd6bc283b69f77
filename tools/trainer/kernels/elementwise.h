// SPDX-License-Identifier: Apache-2.0
//
// The activations of an MLP: SwiGLU (Shazeer, "GLU Variants Improve Transformer",
// arXiv:2002.05202), out = silu(gate)·up with silu(x) = x / (1 + e^-x), and GELU by its tanh
// (Hendrycks and Gimpel, arXiv:1606.08415), out = up/2 · (1 + tanh(sqrt(2/π)·(up + 0.044715·up³))).
// fp32, on the calling thread; NaN and infinity propagate.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_

#include <cstdint>

namespace spillway::trainer {

void SwigluForward(const float* gate, const float* up, int64_t n, float* out);

// On entry `gate` and `up` hold the forward's inputs, and `out` the gradient of its output. On
// return `gate` and `up` hold their gradients, and `out` the forward's output again, which the next
// weight gradient needs.
void SwigluBackward(int64_t n, float* gate, float* up, float* out);

void GeluForward(const float* up, int64_t n, float* out);

// As SwigluBackward, without a gate.
void GeluBackward(int64_t n, float* up, float* out);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_
