// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split layout of Hugging
// Face's LLaMA: elements j and j + head_dim/2 of a head are rotated as a pair, by the angle
// position · theta^(-2j/head_dim), or by other frequencies if they are scaled.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_ROPE_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_ROPE_H_

#include <cstdint>
#include <span>

#include "tools/trainer/kernels/head_rows.h"

namespace spillway::trainer {

// Fills cosines and sines, [length, frequencies] each, from frequencies in radians a position.
// Rounds angles to fp32 as the reference does, so that long positions agree with it.
void FillRopeTables(std::span<const float> frequencies, int64_t length, float* cosines,
                    float* sines);

struct RopeTables {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

// Rotates rows [begin, end) of x, [heads, head_dim] each, in place. Row r has position r mod
// window_length.
void RopeForward(const RopeTables& tables, int64_t window_length, int64_t heads, int64_t head_dim,
                 int64_t begin, int64_t end, const HeadRows<float>& x);
// Rotates gradients by the opposite angle: the transpose of a rotation is its inverse.
void RopeBackward(const RopeTables& tables, int64_t window_length, int64_t heads, int64_t head_dim,
                  int64_t begin, int64_t end, const HeadRows<float>& x);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_ROPE_H_
