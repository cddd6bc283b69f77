// SPDX-License-Identifier: Apache-2.0
//
// What forward keeps for backward, as engine tensors: each block's input, and without checkpointing
// all that is dear to compute again. Values are exact as saved: under fp16-amp they were rounded
// when they were produced, so that a recomputed value and a saved one are the same bits.

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
#include "tools/trainer/tile_access.h"

namespace spillway::trainer {

// What is saved of a block, [tokens, width] each.
enum class Activation : uint8_t {
  kInput,  // of the block; the only one under checkpointing
  kQuery,  // after rope
  kKey,    // after rope
  kValue,
  kAttention,  // before the output projection
  kMiddle,     // the residual after attention
  kGate,
  kUp,
};
inline constexpr int kNumActivations = 8;

// The tensors that `options` saves, all transient: blocks' in order, then without checkpointing the
// logits of each vocabulary tile. Empty without training.
std::vector<TensorSpec> ActivationSpecs(const hf::ModelConfig& config, const ModelOptions& options);

// Thread-compatible. A saved tensor is read back once; then its bytes are given up.
class Activations {
 public:
  static absl::StatusOr<Activations> Register(TileAccess* tiles, ThreadPool* pool,
                                              const hf::ModelConfig& config,
                                              const ModelOptions& options);

  absl::Status Save(int64_t layer, Activation kind, const float* values);
  absl::Status Load(int64_t layer, Activation kind, float* values);

  absl::Status SaveLogits(uint64_t vocabulary_tile, const float* values);
  // Calls use(first token, tokens, their logits) for runs of tokens.
  absl::Status UseLogits(uint64_t vocabulary_tile,
                         const std::function<void(int64_t, int64_t, const float*)>& use);

 private:
  Activations(TileAccess* tiles, ThreadPool* pool) : tiles_(tiles), pool_(pool) {}

  absl::Status SaveTensor(TensorId tensor, const float* values);
  TensorId OfLayer(int64_t layer, Activation kind) const;

  TileAccess* tiles_;
  ThreadPool* pool_;
  size_t kinds_ = 0;              // tensors of a layer
  std::vector<TensorId> layers_;  // by layer, then kind
  std::vector<TensorId> logits_;  // by vocabulary tile
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_ACTIVATIONS_H_
