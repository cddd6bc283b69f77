// SPDX-License-Identifier: Apache-2.0
//
// Activations that forward saves for backward, as engine tensors: the input of each block and,
// without checkpointing, everything that is expensive to recompute. Saving loses no bits: 16-bit
// values were rounded when they were produced, so a recomputed value has the bits of a saved one.
//
// If a step has several micro-batches, the gradient of each one's residual is stored here, too. In
// layer order (AccumulationOrder::kLayer) the saved tensors of all micro-batches exist at the same
// time; otherwise all micro-batches use the same tensors, one after the other.

#ifndef SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
#define SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/trainer/description.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// The type of the residual, between blocks and inside them. Each block adds to it, and bf16 has too
// few bits for that many sums, so under kBf16 the residual stays in fp32, as under PyTorch's
// autocast.
DType ResidualType(Precision precision);

// What is saved of a sublayer if there is no checkpointing; [tokens, width] each.
struct SavedSublayer {
  std::vector<TensorId> inputs;  // results of the attention's inputs, or of the MLP's gate and up
  TensorId attention;            // before the output's linear; none for an MLP
  TensorId residual;             // after the sublayer; none for a block's last
};

struct SavedBlock {
  TensorId input;                        // the only one if checkpointing
  std::vector<SavedSublayer> sublayers;  // empty if checkpointing
};

// Of one micro-batch.
struct SavedPass {
  std::vector<SavedBlock> blocks;
  TensorId head_input;           // in layer order only
  std::vector<TensorId> logits;  // by tile of the vocabulary; empty if checkpointing
};

struct SavedTensors {
  std::vector<SavedPass> passes;    // one, or in layer order one for each micro-batch
  std::vector<TensorId> gradients;  // the residual's, by micro-batch; empty if there is only one

  const SavedPass& Of(int64_t micro_batch) const {
    return passes[static_cast<size_t>(micro_batch) % passes.size()];
  }
};

// Returns the specs of all saved tensors, in the order in which RegisterActivations registers them.
// All are transient. Empty if options.training is false.
std::vector<TensorSpec> ActivationSpecs(const Description& model, const ModelOptions& options);

absl::StatusOr<SavedTensors> RegisterActivations(Engine* engine, const Description& model,
                                                 const ModelOptions& options);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
