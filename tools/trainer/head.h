// SPDX-License-Identifier: Apache-2.0
//
// The end of the model: final norm, language-model head and cross-entropy, one tile of the
// vocabulary at a time. There are two passes: the first accumulates each token's softmax, the
// second turns each tile's logits (saved, or under checkpointing recomputed to the same bits) into
// gradients. In layer order all micro-batches use a tile before the next tile; for every tile each
// one's input is loaded from the activations, and in the second pass its gradient is loaded and
// saved.

#ifndef SPILLWAY_TOOLS_TRAINER_HEAD_H_
#define SPILLWAY_TOOLS_TRAINER_HEAD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/trainer/context.h"
#include "tools/trainer/kernels/cross_entropy.h"
#include "tools/trainer/norm_layer.h"
#include "tools/trainer/tiled_linear.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

struct HeadScratch {
  float* normed = nullptr;          // [tokens, hidden]
  float* d_normed = nullptr;        // [tokens, hidden]; training only
  float* logits = nullptr;          // [tokens, outputs of a tile]; also their gradients
  OnlineSoftmax* states = nullptr;  // [micro-batches that pass together, tokens]

  void Bind(ScratchLayout& layout, const ModelContext& context);
};

// Thread-compatible; context and scratch must outlive it. x is the last block's output, [tokens,
// hidden].
class Head {
 public:
  Head(ModelContext* context, const HeadScratch* scratch, const NormScratch* norm_scratch);

  // Returns the mean cross-entropy.
  absl::StatusOr<double> Loss(float* x, std::span<const int32_t> targets) const;
  // Returns the sum of the mean cross-entropies of `batches`, and runs backward for each loss times
  // `scale`. For one micro-batch, overwrites `gradient` with the gradient of x. For several, x and
  // `gradient` are scratch: each one's x is loaded from the activations and its gradient is saved
  // there.
  absl::StatusOr<double> Train(std::span<const MicroBatch> batches, double scale, float* x,
                               float* gradient) const;
  // Returns the logits of one row, [vocab_size].
  absl::StatusOr<std::vector<float>> Logits(const float* row) const;

 private:
  absl::StatusOr<double> Gather(std::span<const MicroBatch> batches, bool save, float* x) const;
  absl::Status Fetch(const MicroBatch& batch, After after, float* x) const;
  absl::Status BackwardTile(uint64_t tile, const MicroBatch& batch, const OnlineSoftmax* states,
                            float scale) const;

  ModelContext* context_;
  const HeadScratch* scratch_;
  NormLayer norm_;
  TiledLinear linear_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_HEAD_H_
