// SPDX-License-Identifier: Apache-2.0
//
// The context that the parts of the model share: the configuration, the threads, the engine, and
// scratch for one weight tile.

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

// Windows of equal length that pass through the model together. Each token is a row.
struct BatchShape {
  int64_t windows = 0;
  int64_t length = 0;
  int64_t micro_batch = 0;  // index within the step
  int64_t tokens() const { return windows * length; }
};

// One micro-batch of a step.
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
  Gradients* gradients = nullptr;      // null unless training
  Activations* activations = nullptr;  // null unless training
  float* weight_tile = nullptr;        // a tile of 16-bit weights in fp32; null if there are none

  const TensorSpec& WeightSpec(size_t parameter) const {
    return engine->Spec(parameters[parameter].tensors.weight);
  }

  // Takes the scratch for weight_tile from `layout`.
  void Bind(ScratchLayout& layout);

  // Calls use(the tile's weights in fp32). The lease is held during the call if the weights are
  // stored in fp32; otherwise they are converted first and the lease is released.
  absl::Status WithWeights(size_t parameter, uint64_t tile,
                           const std::function<void(const float*)>& use);

  // Round values of the forward pass to the type of saved activations or of the residual. They do
  // nothing if that type is fp32.
  void RoundActivations(float* values, int64_t n) const;
  void RoundResidual(float* values, int64_t n) const;

  // Under kBf16 every operand and result of a product with weights is rounded, as in PyTorch's
  // autocast. Under the other precisions only values that may be saved for backward are rounded.
  bool rounds_products() const { return options.precision == Precision::kBf16; }
  void RoundProduct(float* values, int64_t n) const {
    if (rounds_products()) RoundActivations(values, n);
  }
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_CONTEXT_H_
