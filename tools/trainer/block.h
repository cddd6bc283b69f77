// SPDX-License-Identifier: Apache-2.0
//
// One decoder block: x → middle = x + Wo·attention(norm(x)) → y = middle +
// Wdown·swiglu(norm(middle)). Forward, the recomputation of a checkpointed block and the backward
// over saved values run the same functions in the same order, so that all give the same bits.

#ifndef SPILLWAY_TOOLS_TRAINER_BLOCK_H_
#define SPILLWAY_TOOLS_TRAINER_BLOCK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tools/trainer/context.h"
#include "tools/trainer/kernels/attention.h"
#include "tools/trainer/kernels/rope.h"
#include "tools/trainer/norm_layer.h"
#include "tools/trainer/tiled_linear.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

// Scratch that all blocks use, one at a time; [tokens, ...] each.
struct BlockScratch {
  float* normed = nullptr;     // [hidden]; also a product while it is rounded
  float* query = nullptr;      // [heads, head_dim]
  float* key = nullptr;        // [kv_heads, head_dim]
  float* value = nullptr;      // [kv_heads, head_dim]
  float* attention = nullptr;  // [heads, head_dim]
  float* gate = nullptr;       // [intermediate]; its gradient in backward
  float* up = nullptr;         // [intermediate]; its gradient in backward
  float* hidden = nullptr;     // [intermediate]
  float* work = nullptr;       // AttentionScratchFloats
  // Used in training only.
  float* d_normed = nullptr;
  float* d_attention = nullptr;
  float* d_query = nullptr;
  float* d_key = nullptr;
  float* d_value = nullptr;

  void Bind(ScratchLayout& layout, const ModelContext& context);
};

// The residual between blocks, [tokens, hidden]. In forward x is a block's input and becomes its
// output; in backward x is the block's input.
struct Residual {
  float* x = nullptr;
  float* middle = nullptr;  // overwritten
};

// Thread-compatible; context and scratch must outlive it.
class Block {
 public:
  Block(ModelContext* context, const BlockScratch* scratch, const NormScratch* norm_scratch,
        const RopeTables& rope, int64_t layer);

  // Makes residual.x the block's output (the two pointers are swapped). If `save`, saves what
  // Backward needs except the block's input, which the caller saves.
  absl::Status Forward(const BatchShape& batch, bool save, Residual& residual) const;
  // Loads the input and what Forward saved. Replaces `gradient`, the gradient of the output, with
  // the gradient of the input, and adds the weights' gradients to their tensors.
  absl::Status Backward(const BatchShape& batch, const Residual& residual, float* gradient) const;

 private:
  AttentionShape Shape(const BatchShape& batch) const;
  absl::Status AttentionHalf(const BatchShape& batch, const Residual& residual) const;
  absl::Status GateAndUp(const BatchShape& batch, const float* middle) const;
  absl::Status AddProduct(const TiledLinear& linear, const float* x, int64_t tokens,
                          float* residual) const;
  absl::Status SaveForBackward(const BatchShape& batch, const float* middle) const;
  absl::Status Restore(const BatchShape& batch, const Residual& residual) const;
  absl::Status FeedForwardBackward(const BatchShape& batch, const float* middle,
                                   float* gradient) const;
  absl::Status AttentionHalfBackward(const BatchShape& batch, const float* x,
                                     float* gradient) const;

  ModelContext* context_;
  const BlockScratch* scratch_;
  RopeTables rope_;
  int64_t layer_;
  NormLayer input_norm_;
  NormLayer middle_norm_;
  TiledLinear query_;
  TiledLinear key_;
  TiledLinear value_;
  TiledLinear output_;
  TiledLinear gate_;
  TiledLinear up_;
  TiledLinear down_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_BLOCK_H_
