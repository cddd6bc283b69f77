// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the rules on fp32 elements in memory, vectorised. Tensors and formats are left
// to others.
//
// The one idea: every element is computed by the same sequence of correctly rounded fp32 operations
// (multiply, add, divide, square root; no fused multiply-add), so that the bits depend neither on
// how a tile is cut, nor on alignment, nor on the instruction set that run-time dispatch picks. Of
// an element that is NaN, only that it is NaN does not depend on them: its sign and payload may.

#ifndef SPILLWAY_OPTIM_RULE_KERNELS_H_
#define SPILLWAY_OPTIM_RULE_KERNELS_H_

#include <cstdint>

#include "spillway/optimizer.h"

namespace spillway::optim {

inline constexpr int kMostMoments = 3;

// The constants of one update: computed in double, rounded once to float. The comment of
// UpdateElements says which ones a rule uses.
struct RuleFactors {
  RuleKind kind = RuleKind::kAdamW;
  bool has_momentum = false;  // SGD, RMSprop, LARS
  bool nesterov = false;      // SGD with momentum
  bool centered = false;      // RMSprop
  bool amsgrad = false;       // AdamW, Adam
  float gradient_scale = 1;   // negative with maximize
  float decay = 1;            // 1 − lr·λ, for the rules with decoupled decay
  float coupled_decay = 0;    // λ, for the others
  float beta1 = 0;            // also the momentum μ
  float one_minus_beta1 = 0;  // for SGD 1 − τ, the gradient's share
  float beta2 = 0;            // also RMSprop's α
  float one_minus_beta2 = 0;
  float variance_share = 0;  // RMSprop: α(1 − α)
  float step_size = 0;       // lr; for AdamW and Adam lr / (1 − β₁ᵗ)
  float bias2_root = 1;      // √(1 − β₂ᵗ)
  float epsilon = 0;         // for Adafactor ε₁²
  float moment_scale = 1;    // LAMB: 1 / (1 − β₁ᵗ)
};

// Rounds to float. A number past the largest float becomes infinite.
float ToFloat(double value);

// Returns the factors of an update. For a rule that needs norms, step_size is lr, as for a tensor
// that is updated without them; StepSizeOf (rule_passes.h) computes it for the others.
RuleFactors MakeFactors(const Rule& rule, const Update& update);

// Runs of equal length, aligned to their element size. They do not overlap.
struct RuleRun {
  int64_t num_elements = 0;
  const float* gradient = nullptr;
  float* master = nullptr;            // updated in place, as the moments are
  float* moments[kMostMoments] = {};  // those of the rule, each at its SlotOf (state_specs.h)
};

// Updates the run, where s is the gradient_scale, and μ and α are the factors' β₁ and β₂:
//   AdamW    g = s·gradient;  m ← β₁·m + (1−β₁)·g;  v ← β₂·v + (1−β₂)·(g·g);
//            p ← p·decay − step_size·(m / (√v / bias2_root + ε))
//            with amsgrad: w ← max(w, v), which takes the place of v in p's update
//   Adam     g = s·gradient + coupled_decay·p; then as AdamW with p for p·decay
//   SGD      g as Adam's;  m ← μ·m + one_minus_beta1·g;  p ← p − step_size·m;  with nesterov
//            step_size·(g + μ·m);  without momentum step_size·g
//   RMSprop  g as Adam's;  v ← α·v + (1−α)·(g·g);  d = g / (√v + ε);
//            m ← μ·m + d;  p ← p − step_size·m;  without momentum step_size·d
//            centered: e = g − a;  v ← α·v + variance_share·(e·e);  a ← α·a + (1−α)·g
//   Lion     u = β₁·m + (1−β₁)·g;  p ← p·decay − step_size·sign(u);  m ← β₂·m + (1−β₂)·g
//   LAMB     m and v as AdamW's;  u = moment_scale·(m / (√v / bias2_root + ε)) + coupled_decay·p;
//            p ← p − step_size·u
//   LARS     g as Adam's;  m ← μ·m + step_size·g;  p ← p − m;  without momentum step_size·g
//   Adafactor, for vectors  v ← β₂·v + (1−β₂)·(g·g);  u = g / √max(v, ε);
//            p ← p·decay − step_size·u
// The moments are m, v and w; for RMSprop v, m and a; for SGD, Lion and LARS m; for Adafactor v.
void UpdateElements(const RuleFactors& factors, const RuleRun& run);

// Computes the vector whose norm a rule needs, beside the parameter's, before it may update: for
// LAMB and Adafactor u, bit for bit as UpdateElements computes it; for LARS s·gradient, which needs
// no moments. Does not change the run. REQUIRES: one of these rules.
void DirectionOfElements(const RuleFactors& factors, const RuleRun& run, float* direction);
constexpr bool DirectionNeedsMoments(RuleKind kind) { return kind != RuleKind::kLars; }

// Returns the instruction set that UpdateElements runs on ("AVX3", "AVX2", …).
const char* InstructionSet();

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RULE_KERNELS_H_
