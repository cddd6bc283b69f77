// SPDX-License-Identifier: Apache-2.0
//
// The bytes of activations that automatic differentiation keeps on a GPU, as PyTorch does it,
// counted from a model's description. Each operation keeps what its own backward needs: a linear
// its input, a norm its input, an attention its queries, keys, values and result. This is the count
// of Korthikanti et al., Reducing activation recomputation in large transformer models (2022),
// section 4.1, for any model that a description can say. What Spillway itself saves is
// trainer::ActivationSpecs.
//
// Not counted: gradients of activations, which live shortly; the allocator's fragments; the scratch
// of libraries.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_AUTOGRAD_BYTES_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_AUTOGRAD_BYTES_H_

#include <cstdint>

#include "tools/trainer/description.h"

namespace spillway::command {

struct AutogradOptions {
  int64_t sequence = 0;
  int64_t windows = 1;         // of a micro-batch
  double element_bytes = 2;    // 4: fp32
  bool checkpointing = false;  // of each block: its input is kept, the rest is computed again
  // Flash attention keeps no scores. Without it the softmax of all scores is kept, and with dropout
  // what is left of it.
  bool flash_attention = true;
  bool dropout = false;  // after the attention, after each sublayer, and of the scores
};

// What a model's activations are made of, in bytes.
struct AutogradBytes {
  double block_inputs = 0;   // of all blocks; a part of `blocks`
  double blocks = 0;         // everything that all blocks keep
  double largest_block = 0;  // what one block keeps beside its input
  // The last norm's and the head's inputs, the logits in fp32, and the gradient of the logits,
  // which is made while all blocks' activations are there.
  double head = 0;

  double Peak(bool checkpointing) const;
};

AutogradBytes CountAutogradBytes(const trainer::Description& model, const AutogradOptions& options);

// The peak of a training step.
inline double ActivationBytes(const trainer::Description& model, const AutogradOptions& options) {
  return CountAutogradBytes(model, options).Peak(options.checkpointing);
}

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_AUTOGRAD_BYTES_H_
