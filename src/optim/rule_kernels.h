// SPDX-License-Identifier: Apache-2.0
//
// The rules on fp32 elements that lie in memory: the arithmetic, vectorised, and nothing about
// tensors or formats.
//
// The one idea: every element is computed by the same sequence of correctly rounded fp32 operations
// (multiply, add, divide, square root; no fused multiply-add), so that the bits depend neither on
// how a tile is cut, nor on alignment, nor on the instruction set that run-time dispatch picks.

#ifndef SPILLWAY_OPTIM_RULE_KERNELS_H_
#define SPILLWAY_OPTIM_RULE_KERNELS_H_

#include <cstdint>

#include "spillway/optimizer.h"

namespace spillway::optim {

inline constexpr int kMostMoments = 2;

// What one update multiplies by: computed in double, rounded once to float. Which of them a rule
// uses, UpdateElements says.
struct RuleFactors {
  RuleKind kind = RuleKind::kAdamW;
  bool has_momentum = false;  // SGD, RMSprop, LARS
  float gradient_scale = 1;
  float decay = 1;          // 1 − lr·λ, of the rules with decoupled decay
  float coupled_decay = 0;  // λ, of the others
  float beta1 = 0;          // also the momentum μ
  float one_minus_beta1 = 0;
  float beta2 = 0;  // also RMSprop's α
  float one_minus_beta2 = 0;
  float step_size = 0;     // lr; of AdamW and Adam lr / (1 − β₁ᵗ)
  float bias2_root = 1;    // √(1 − β₂ᵗ)
  float epsilon = 0;       // of Adafactor ε₁²
  float moment_scale = 1;  // LAMB: 1 / (1 − β₁ᵗ)
};

// A number past the largest float is infinite.
float ToFloat(double value);

// Of a rule that takes norms first, step_size is that of a tensor whose norms change nothing;
// StepSizeOf (rule_passes.h) has the others.
RuleFactors MakeFactors(const Rule& rule, const Update& update);

// Runs of equal length, aligned to their elements. None overlap.
struct RuleRun {
  int64_t num_elements = 0;
  const float* gradient = nullptr;
  float* master = nullptr;            // updated in place, as are the moments
  float* moments[kMostMoments] = {};  // as many as the rule has
};

// Updates the run. With s the gradient_scale, μ = β₁ and α = β₂ of the factors:
//   AdamW    g = s·gradient;  m ← β₁·m + (1−β₁)·g;  v ← β₂·v + (1−β₂)·(g·g);
//            p ← p·decay − step_size·(m / (√v / bias2_root + ε))
//   Adam     g = s·gradient + coupled_decay·p; then as AdamW with p for p·decay
//   SGD      g as Adam's;  m ← μ·m + g;  p ← p − step_size·m;  without momentum step_size·g
//   RMSprop  g as Adam's;  v ← α·v + (1−α)·(g·g);  d = g / (√v + ε);
//            m ← μ·m + d;  p ← p − step_size·m;  without momentum step_size·d
//   Lion     u = β₁·m + (1−β₁)·g;  p ← p·decay − step_size·sign(u);  m ← β₂·m + (1−β₂)·g
//   LAMB     m and v as AdamW's;  u = moment_scale·(m / (√v / bias2_root + ε)) + coupled_decay·p;
//            p ← p − step_size·u
//   LARS     g as Adam's;  m ← μ·m + step_size·g;  p ← p − m;  without momentum step_size·g
//   Adafactor, of vectors  v ← β₂·v + (1−β₂)·(g·g);  u = g / √max(v, ε);
//            p ← p·decay − step_size·u
// Moments: m and v; of RMSprop v and m; of SGD, Lion and LARS m; of Adafactor v.
void UpdateElements(const RuleFactors& factors, const RuleRun& run);

// What a rule takes the norm of beside the parameter's, before it may update: u of LAMB and of
// Adafactor, bit for bit as UpdateElements computes it, and s·gradient of LARS, which needs no
// moments for it. Changes nothing of the run. REQUIRES: one of these rules.
void DirectionOfElements(const RuleFactors& factors, const RuleRun& run, float* direction);
constexpr bool DirectionNeedsMoments(RuleKind kind) { return kind != RuleKind::kLars; }

// The instruction set that UpdateElements runs on ("AVX3", "AVX2", …).
const char* InstructionSet();

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RULE_KERNELS_H_
