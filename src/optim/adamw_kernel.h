// SPDX-License-Identifier: Apache-2.0
//
// AdamW on a run of elements that lie in memory: the arithmetic, vectorised, and nothing about
// tensors.
//
// The one idea: every element is computed by the same sequence of correctly rounded fp32 operations
// (multiply, add, divide, square root; no fused multiply-add), so that the bits depend neither on
// how a tile is cut, nor on alignment, nor on the instruction set that run-time dispatch picks.

#ifndef SPILLWAY_OPTIM_ADAMW_KERNEL_H_
#define SPILLWAY_OPTIM_ADAMW_KERNEL_H_

#include <cstdint>

#include "spillway/optimizer.h"

namespace spillway::optim {

// What one step multiplies by: computed in double, rounded once to float.
struct AdamWFactors {
  float gradient_scale;
  float decay;  // 1 − lr·λ
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;   // lr / (1 − β₁ᵗ)
  float bias2_root;  // √(1 − β₂ᵗ)
  float epsilon;
};

AdamWFactors MakeAdamWFactors(const AdamWOptions& options, const AdamWStep& step);

// Runs of equal length, aligned to their elements. None overlap.
struct AdamWRun {
  int64_t num_elements = 0;
  const void* gradient = nullptr;
  bool gradient_is_f16 = false;  // else F32
  float* master = nullptr;       // updated in place, as are the moments
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  uint16_t* weight = nullptr;  // the new master as F16, rounded to nearest even; null: not wanted
};

// Updates the run: with g the gradient times gradient_scale,
//   p ← p·decay;  m ← β₁·m + (1−β₁)·g;  v ← β₂·v + (1−β₂)·(g·g);
//   p ← p − step_size · (m / (√v / bias2_root + ε)).
void UpdateAdamW(const AdamWFactors& factors, const AdamWRun& run);

// The instruction set that UpdateAdamW runs on ("AVX3", "AVX2", …).
const char* AdamWInstructionSet();

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_KERNEL_H_
