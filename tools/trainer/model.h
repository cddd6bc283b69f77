// SPDX-License-Identifier: Apache-2.0
//
// A LLaMA-family decoder over engine tensors: explicit forward and backward, a block at a time, and
// the micro-batches of a step one after the other through all blocks or through each.
// Every weight, gradient, optimizer tensor and saved activation is an engine tensor, leased tile by
// tile as it is used; what is left is scratch, counted in workspace_bytes().
//
// The rule that everything here keeps: tiles, reduction blocks and the cut between threads follow
// from the model, the sequence and the thread count only, never from a budget, a page size or
// timing; and micro-batches add to a gradient in their order, the head's to a tied embedding before
// the lookup's. So losses, gradients and weights are the same bits however the bytes moved.

#ifndef SPILLWAY_TOOLS_TRAINER_MODEL_H_
#define SPILLWAY_TOOLS_TRAINER_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/parameter_groups.h"

namespace spillway::trainer {

// kFp32: weights, activations and gradients in fp32; the weight is its own master.
// kFp16Amp: fp16 weights and activations; fp32 accumulation, softmax, norms and loss; fp32 master
// weights of what is trained, or under compact state what with the weight makes them. Gradients are
// of the scaled loss.
// kBf16: the same in bf16, which has fp32's range: the loss needs no scale. The residual is fp32.
enum class Precision : uint8_t { kFp32, kFp16Amp, kBf16 };
inline constexpr int kNumPrecisions = 3;

// "fp32", "fp16-amp", "bf16".
std::string_view Name(Precision precision);
// Of activations, and of all weights but those that are kept in fp32.
DType ElementType(Precision precision);

// How a step's micro-batches pass through the model: each through all layers before the next, or
// all through a layer before the next layer. The sums and their order are the same.
enum class AccumulationOrder : uint8_t { kMicroBatch, kLayer };

struct ModelOptions {
  Precision precision = Precision::kFp32;
  DType gradient_dtype = DType::kF32;  // of 16-bit weights' gradients: kF32 or their own
  bool checkpoint_activations = true;  // save only each block's input, recompute the rest
  bool training = true;                // false: no gradients, moments, masters or saved activations
  int64_t sequence = 0;                // tokens of a window
  int64_t micro_batch = 1;             // windows of a micro-batch
  int64_t accumulate = 1;              // micro-batches of a step
  AccumulationOrder accumulation_order = AccumulationOrder::kMicroBatch;
  Rule rule;  // which decides the state that a parameter has
  StateFormat state_format = StateFormat::kF32;
  ParameterGroups groups;   // frozen parameters have no gradient and no state
  bool is_resumed = false;  // the engine's last commit must have every tensor: DataLoss if not

  bool by_layer() const {
    return accumulate > 1 && accumulation_order == AccumulationOrder::kLayer;
  }
};

// Where a parameter's first values come from: given its Hugging Face name and shape, a Reader of
// fp32 bytes.
using WeightSource = std::function<absl::StatusOr<Reader>(const std::string& name,
                                                          const std::vector<int64_t>& shape)>;

// The engine tensors of a parameter.
struct TensorsOfParameter {
  TensorId weight;
  TensorId gradient;  // no tensor: the parameter is frozen, or nothing is trained
  // The weight in full: the master weight, or the weight itself where it has none, which is so
  // of weights in fp32, of frozen parameters and without training.
  TensorId master;
  // Under compact state the rest of the weight in full, which `master`, the weight, is the most of.
  TensorId rest_of_master;
  std::vector<TensorId> state;  // as StateSpecs lists it, a master weight among it

  bool is_trained() const { return gradient != TensorId(); }
};

struct Parameter {
  std::string name;  // Hugging Face's, "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;
  TensorsOfParameter tensors;
};

struct StepBatch {
  std::span<const int32_t> inputs;   // [accumulate × micro_batch × sequence] token ids
  std::span<const int32_t> targets;  // the same shape: the next token of each
  double gradient_scale = 1.0;  // multiplies each micro-batch's loss: loss scale / accumulation
};

// Over all gradients of a step as they are stored (scaled): fp64 sums over fixed blocks.
struct GradientSummary {
  double sum_of_squares = 0;
  bool finite = true;
};

// Budgets within which the model finds room for the tiles it leases together, beside those of roles
// that are placed on the device or in pinned memory.
struct MinimumBudgets {
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;
  std::array<uint64_t, kNumRoles> role_bytes = {};  // what all tiles of a role take
};

// Thread-compatible. The engine and pool must outlive it. After an error the engine's tensors may
// be half updated: go back to the last commit.
class Model {
 public:
  // Registers every tensor (those a commit holds are taken from there, and `source` is not asked
  // for them). InvalidArgument names a parameter whose values are not finite.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Engine* engine, ThreadPool* pool,
                                                       const hf::ModelConfig& config,
                                                       const ModelOptions& options,
                                                       const WeightSource& source);
  virtual ~Model() = default;

  // Forward and backward of a step's micro-batches; each adds its gradients (one rounding a use) to
  // their tensors. Returns the mean cross-entropy over all tokens, unscaled.
  virtual absl::StatusOr<double> Train(const StepBatch& step) = 0;
  // Of the last step.
  virtual GradientSummary gradients() const = 0;
  // Forward only: the mean cross-entropy.
  virtual absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                                      std::span<const int32_t> targets) = 0;
  // Forward only, one window of any length up to `sequence`: the last position's logits,
  // [vocab_size] fp32.
  virtual absl::StatusOr<std::vector<float>> NextTokenLogits(std::span<const int32_t> tokens) = 0;

  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual uint64_t num_parameters() const = 0;
  // Scratch in use at its highest, bytes (not what BLAS keeps inside).
  virtual uint64_t workspace_bytes() const = 0;
};

// Pure functions of their arguments, for checks before anything is opened.
MinimumBudgets SmallestBudgets(const hf::ModelConfig& config, const ModelOptions& options,
                               const Placement& placement = {});
// Bytes of all engine tensors that a commit holds, and of those that are transient; and the room
// that both take where they rest, each tile rounded up to 4 KiB.
struct StateBytes {
  uint64_t committed = 0;
  uint64_t transient = 0;
  uint64_t committed_room = 0;
  uint64_t transient_room = 0;
};
StateBytes ModelStateBytes(const hf::ModelConfig& config, const ModelOptions& options);
// What a store holds at most while the state of such a run is converted from another format: the
// commit of before, and what is new in the next.
StateBytes ConversionBytes(const hf::ModelConfig& config, const ModelOptions& options,
                           StateFormat from);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_MODEL_H_
