// SPDX-License-Identifier: Apache-2.0
//
// AdamW over engine tensors: fp32 master weights and moments rest wherever the engine put them
// (NVMe, as a rule) and stream through pinned memory in tiles of bounded number while the CPU
// updates them, so that the pass's memory does not grow with the model.
//
// Rule: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101), with the
// bias correction and the order of operations of torch.optim.AdamW:
//   p ← p·(1 − lr·λ);  m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;
//   p ← p − (lr/(1−β₁ᵗ)) · m / (√v/√(1−β₂ᵗ) + ε)

#ifndef SPILLWAY_OPTIMIZER_H_
#define SPILLWAY_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/export.h"
#include "spillway/thread_pool.h"
#include "spillway/types.h"

namespace spillway {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

// The tensors of one parameter. All have the same shape and tile_rows.
struct AdamWTensors {
  TensorId weight;  // what the forward pass reads: F16, or F32 and then the same tensor as `master`
  TensorId gradient;  // F16 or F32; a transient one is discarded by the update that used it
  TensorId master;    // F32
  TensorId moment1;   // F32
  TensorId moment2;   // F32
};

// What one update takes.
struct AdamWStep {
  int64_t step = 1;  // t, from 1, counting updates that were applied
  double learning_rate = 0;
  double gradient_scale =
      1.0;  // every gradient element is multiplied by this first (unscale and clip)
};

// Owns no tensor; the engine and the pool must outlive it. Thread-compatible. A failure of the
// engine is returned as it came; tiles updated before it stay updated, so the caller must go back
// to the last commit.
class SPILLWAY_EXPORT AdamW {
 public:
  // InvalidArgument if dtypes, shapes or tiles of a parameter's tensors disagree or an option is
  // out of range (betas in [0, 1), epsilon > 0, weight_decay >= 0).
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(Engine* engine, ThreadPool* pool,
                                                       AdamWOptions options,
                                                       std::vector<AdamWTensors> parameters);
  virtual ~AdamW() = default;

  // The uses, in order, that Step will make: for Engine::Prefetch by a caller that wants the first
  // tiles under way before the pass begins.
  virtual const std::vector<Use>& uses() const = 0;

  // Updates every parameter once. Does not declare its uses: call Prefetch(uses()) before.
  virtual absl::Status Step(const AdamWStep& step) = 0;

  // Pinned bytes within which Step always finds room: the tiles that it leases together, with what
  // fragmentation can take.
  virtual uint64_t min_pinned_bytes() const = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_OPTIMIZER_H_
