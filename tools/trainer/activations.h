// SPDX-License-Identifier: Apache-2.0
//
// Activations that forward saves for backward, as engine tensors: the input of each block and,
// without checkpointing, everything that is expensive to recompute. Saving loses no bits: 16-bit
// values were rounded when they were produced, so a recomputed value has the bits of a saved one.
//
// If a step has several micro-batches, the gradient of each one's residual is stored here, too. In
// layer order (AccumulationOrder::kLayer) the saved tensors of all micro-batches exist at the same
// time, and a residual passes from layer to layer as the saved input of the next layer. A block is
// small, so micro-batches pass through it one after the other and its tiles stay resident. The
// embedding and the head may be larger than the budgets, so there all micro-batches use a tile
// before the next tile. In both orders micro-batches add to a gradient one after the other, with
// one rounding each. An embedding tied to the head receives the head's gradients of all
// micro-batches first.

#ifndef SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
#define SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// The tensors saved for a block, [tokens, width] each.
enum class Activation : uint8_t {
  kInput,  // of the block (of layer num_layers: the head's); the only one if checkpointing
  kQuery,  // after rope
  kKey,    // after rope
  kValue,
  kAttention,  // before the output projection
  kMiddle,     // the residual after attention
  kGate,
  kUp,
};
inline constexpr int kNumActivations = 8;

// The type of the residual, between blocks and inside them. Each block adds to it, and bf16 has too
// few bits for that many sums, so under kBf16 the residual stays in fp32, as under PyTorch's
// autocast.
DType ResidualType(Precision precision);

// Whether a load keeps the saved tensor for another load or discards it.
enum class After : uint8_t { kKeep, kForget };

// Returns the specs of all saved tensors, which are transient. For each micro-batch whose tensors
// exist at the same time, these are the blocks' tensors in order, in layer order the head's input,
// and without checkpointing the logits of each vocabulary tile. The gradients of the residuals
// follow. Empty if options.training is false.
std::vector<TensorSpec> ActivationSpecs(const hf::ModelConfig& config, const ModelOptions& options);

// Thread-compatible. `micro_batch` is an index within the step.
class Activations {
 public:
  static absl::StatusOr<Activations> Register(Engine* engine, ThreadPool* pool,
                                              const hf::ModelConfig& config,
                                              const ModelOptions& options);

  absl::Status Save(int64_t micro_batch, int64_t layer, Activation kind, const float* values);
  absl::Status Load(int64_t micro_batch, int64_t layer, Activation kind, After after,
                    float* values);

  // The residual's gradient, fp32 [tokens, hidden]. REQUIRES: a step has several micro-batches.
  absl::Status SaveGradient(int64_t micro_batch, const float* values);
  absl::Status LoadGradient(int64_t micro_batch, After after, float* values);

  absl::Status SaveLogits(int64_t micro_batch, uint64_t vocabulary_tile, const float* values);
  // Calls use(first token, number of tokens, their logits) for runs of tokens, and discards the
  // logits.
  absl::Status UseLogits(int64_t micro_batch, uint64_t vocabulary_tile,
                         const std::function<void(int64_t, int64_t, const float*)>& use);

 private:
  // The saved tensors of one micro-batch. If micro-batches pass through the model one by one, all
  // use the same tensors.
  struct Saved {
    std::vector<TensorId> layers;  // by layer, then kind
    std::vector<TensorId> logits;  // by vocabulary tile
  };

  Activations(Engine* engine, ThreadPool* pool) : engine_(engine), pool_(pool) {}

  absl::Status SaveTensor(TensorId tensor, const float* values);
  absl::Status LoadTensor(TensorId tensor, After after, float* values);
  const Saved& Of(int64_t micro_batch) const {
    return saved_[static_cast<size_t>(micro_batch) % saved_.size()];
  }
  TensorId OfLayer(int64_t micro_batch, int64_t layer, Activation kind) const;

  Engine* engine_;
  ThreadPool* pool_;
  size_t kinds_ = 0;  // tensors per layer
  std::vector<Saved> saved_;
  std::vector<TensorId> gradients_;  // by micro-batch
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
