// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU (Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202): out = silu(gate)·up with
// silu(x) = x / (1 + e^-x). fp32, on the calling thread; NaN and infinity propagate.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_

#include <cstdint>

namespace spillway::trainer {

void SwigluForward(const float* gate, const float* up, int64_t n, float* out);

// On entry `gate` and `up` hold the forward's inputs, and `out` the gradient of its output. On
// return `gate` and `up` hold their gradients, and `out` the forward's output again, which the next
// weight gradient needs.
void SwigluBackward(int64_t n, float* gate, float* up, float* out);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_ELEMENTWISE_H_
