// SPDX-License-Identifier: Apache-2.0
//
// What forward keeps for backward, as engine tensors: each block's input, and without checkpointing
// all that is dear to compute again. Values are exact as saved: in 16 bits they were rounded
// when they were produced, so that a recomputed value and a saved one are the same bits.
//
// A step of several micro-batches has the gradient of each one's residual here, too. Where they
// pass through a layer before the next layer, what is saved of each exists at once, and the inputs
// of layers are how a residual gets from layer to layer. A block is small, so its micro-batches
// come one after the other and its tiles stay; the embedding and the head may be larger than the
// budgets, so there all micro-batches use a tile before the next. Each adds to a gradient in its
// turn with one rounding, in both orders; to an embedding tied to the head all heads' shares come
// first.

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

// What is saved of a block, [tokens, width] each.
enum class Activation : uint8_t {
  kInput,  // of the block (of one more: the head's); the only one under checkpointing
  kQuery,  // after rope
  kKey,    // after rope
  kValue,
  kAttention,  // before the output projection
  kMiddle,     // the residual after attention
  kGate,
  kUp,
};
inline constexpr int kNumActivations = 8;

// Of the residual between blocks and inside them, to which each block adds: bf16 has too few bits
// for that many sums, so there it stays in fp32, as under PyTorch's autocast.
DType ResidualType(Precision precision);

// Whether what was loaded will be loaded again.
enum class After : uint8_t { kKeep, kForget };

// The tensors that `options` saves, all transient: for each micro-batch that is saved at once those
// of blocks in order, in layer order the head's input, and without checkpointing the logits of each
// vocabulary tile; then the residuals' gradients. Empty without training.
std::vector<TensorSpec> ActivationSpecs(const hf::ModelConfig& config, const ModelOptions& options);

// Thread-compatible. Micro-batches are counted in their step.
class Activations {
 public:
  static absl::StatusOr<Activations> Register(Engine* engine, ThreadPool* pool,
                                              const hf::ModelConfig& config,
                                              const ModelOptions& options);

  absl::Status Save(int64_t micro_batch, int64_t layer, Activation kind, const float* values);
  absl::Status Load(int64_t micro_batch, int64_t layer, Activation kind, After after,
                    float* values);

  // In fp32, [tokens, hidden]. REQUIRES: a step has several micro-batches.
  absl::Status SaveGradient(int64_t micro_batch, const float* values);
  absl::Status LoadGradient(int64_t micro_batch, After after, float* values);

  absl::Status SaveLogits(int64_t micro_batch, uint64_t vocabulary_tile, const float* values);
  // Calls use(first token, tokens, their logits) for runs of tokens, and forgets them.
  absl::Status UseLogits(int64_t micro_batch, uint64_t vocabulary_tile,
                         const std::function<void(int64_t, int64_t, const float*)>& use);

 private:
  // What is saved of a micro-batch; if they pass through the model one by one, of the one at hand.
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
  size_t kinds_ = 0;  // tensors of a layer
  std::vector<Saved> saved_;
  std::vector<TensorId> gradients_;  // by micro-batch
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
