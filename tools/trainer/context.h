// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the model share: the configuration, the threads, the engine, and scratch for
// one weight tile.

#ifndef SPILLWAY_TOOLS_TRAINER_CONTEXT_H_
#define SPILLWAY_TOOLS_TRAINER_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/gradients.h"
#include "tools/trainer/model.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

// Windows of equal length that go through the model together, a row a token.
struct BatchShape {
  int64_t windows = 0;
  int64_t length = 0;
  int64_t micro_batch = 0;  // which of the step's
  int64_t tokens() const { return windows * length; }
};

// One of a step's micro-batches.
struct MicroBatch {
  int64_t index = 0;
  std::span<const int32_t> targets;
};

struct ModelContext {
  hf::ModelConfig config;
  ModelOptions options;
  ThreadPool* pool = nullptr;
  // The model holds at most one lease at a time, so that a device budget of one tile is enough.
  Engine* engine = nullptr;
  std::vector<Parameter> parameters;
  Gradients* gradients = nullptr;      // null without training
  Activations* activations = nullptr;  // null without training
  float* weight_tile = nullptr;        // 16-bit weights, converted; null if there are none

  const TensorSpec& WeightSpec(size_t parameter) const {
    return engine->Spec(parameters[parameter].tensors.weight);
  }

  // States the scratch above.
  void Bind(ScratchLayout& layout);

  // Calls use(the tile's weights in fp32), under the tile's lease or after it.
  absl::Status WithWeights(size_t parameter, uint64_t tile,
                           const std::function<void(const float*)>& use);

  // Rounds what forward produces to what a tensor of it would hold; nothing where that is fp32.
  void RoundActivations(float* values, int64_t n) const;
  void RoundResidual(float* values, int64_t n) const;

  // Under bf16 every operand and result of a product with weights is rounded, as PyTorch's autocast
  // does; else only what may be saved for backward is.
  bool rounds_products() const { return options.precision == Precision::kBf16; }
  void RoundProduct(float* values, int64_t n) const {
    if (rounds_products()) RoundActivations(values, n);
  }
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_CONTEXT_H_
