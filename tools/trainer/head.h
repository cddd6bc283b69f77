// SPDX-License-Identifier: Apache-2.0
//
// The model's end: final norm, language-model head and cross-entropy, a tile of the vocabulary at a
// time. Two passes: the first gathers each token's softmax, the second turns each tile's logits
// (saved, or under checkpointing computed again, the same bits) into gradients. Micro-batches that
// come together all use a tile before the next; what each has of its own comes and goes then.

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
  float* logits = nullptr;          // [tokens, outputs of a tile], and their gradients
  OnlineSoftmax* states = nullptr;  // [micro-batches that come together, tokens]

  void Bind(ScratchLayout& layout, const ModelContext& context);
};

// Thread-compatible; context and scratch must outlive it. x is the last block's output, [tokens,
// hidden].
class Head {
 public:
  Head(ModelContext* context, const HeadScratch* scratch, const NormScratch* norm_scratch);

  // The mean cross-entropy.
  absl::StatusOr<double> Loss(float* x, std::span<const int32_t> targets) const;
  // The sum of the same over `batches`, and backward of each loss times `scale`: overwrites
  // `gradient` with x's. Of one micro-batch; of several, x is scratch, each one's is read from and
  // its gradient left in the activations.
  absl::StatusOr<double> Train(std::span<const MicroBatch> batches, double scale, float* x,
                               float* gradient) const;
  // The logits of one row, [vocab_size].
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
