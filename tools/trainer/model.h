// SPDX-License-Identifier: Apache-2.0
//
// A decoder over engine tensors: training steps, losses and next tokens. It checks what callers
// give, and leaves the order of a step to the walk (walk.h) and elements to a Compute
// (compute/compute.h). Every weight, gradient, optimizer tensor and saved activation is an engine
// tensor. All other memory is scratch, counted in workspace_bytes().

#ifndef SPILLWAY_TOOLS_TRAINER_MODEL_H_
#define SPILLWAY_TOOLS_TRAINER_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include "tools/trainer/compute/computed_by.h"
#include "tools/trainer/description.h"
#include "tools/trainer/parameter_groups.h"

namespace spillway::trainer {

class Compute;

// kFp32: weights, activations and gradients in fp32; the weight is its own master.
// kFp16Amp: fp16 weights and activations; fp32 accumulation, softmax, norms and loss. Trained
// parameters have fp32 master weights, or under compact state the bits that complete the weights to
// master weights. Gradients are of the scaled loss.
// kBf16: as kFp16Amp, but in bf16, which has fp32's range, so the loss needs no scale. The residual
// is fp32.
enum class Precision : uint8_t { kFp32, kFp16Amp, kBf16 };
inline constexpr int kNumPrecisions = 3;

// "fp32", "fp16-amp", "bf16".
std::string_view Name(Precision precision);
// The element type of activations, and of all weights except those kept in fp32.
DType ElementType(Precision precision);

// How a step's micro-batches pass through the model. kMicroBatch: each passes through all layers
// before the next micro-batch. kLayer: all pass through a layer before the next layer. The sums and
// their order are the same.
enum class AccumulationOrder : uint8_t { kMicroBatch, kLayer };

inline constexpr int64_t kMostTileElements = int64_t{1} << 48;  // so that bytes can be counted
// The most elements of a tile; see TilesOf (parameters.h). 0: by the model.
struct TileSizes {
  int64_t values = 0;  // of weights and gradients, and with them of activations
  int64_t state = 0;   // of optimizer state: as many elements of the weight

  friend bool operator==(const TileSizes&, const TileSizes&) = default;
};

struct ModelOptions {
  Precision precision = Precision::kFp32;
  DType gradient_dtype = DType::kF32;  // of 16-bit weights: kF32, or the weights' type
  bool checkpoint_activations = true;  // save only each block's input, and recompute the rest
  bool training = true;                // false: no gradients, moments, masters or saved activations
  int64_t sequence = 0;                // tokens per window
  int64_t micro_batch = 1;             // windows per micro-batch
  int64_t accumulate = 1;              // micro-batches per step
  AccumulationOrder accumulation_order = AccumulationOrder::kMicroBatch;
  Rule rule;  // decides which state a parameter has
  StateFormat state_format = StateFormat::kF32;
  ParameterGroups groups;  // frozen parameters have no gradient and no state
  // A GPU computes, and AdamW's state that rests there is updated there.
  bool on_gpu = false;
  bool is_resumed = false;  // DataLoss unless the engine's last commit has every tensor
  TileSizes tiles;          // a store's tiles do not change: a resumed run needs those of the store

  bool by_layer() const {
    return accumulate > 1 && accumulation_order == AccumulationOrder::kLayer;
  }
};

// InvalidArgument if they are not the options of a model.
absl::Status CheckOptions(const ModelOptions& options);

// The source of a parameter's first values. Returns a Reader of its fp32 bytes.
using WeightSource = std::function<absl::StatusOr<Reader>(const ParameterShape& parameter)>;

// The engine tensors of a parameter.
struct TensorsOfParameter {
  TensorId weight;
  TensorId gradient;  // no tensor if the parameter is frozen or the model is not trained
  // The tensor to read the full-precision weight from: the master weight, or the weight itself if
  // it has no master weight. Weights in fp32 and frozen parameters have none, nor does a model that
  // is not trained.
  TensorId master;
  // Under compact state, the tensor with the remaining bits of the master weight. `master` is then
  // the weight, which holds most of the bits.
  TensorId rest_of_master;
  std::vector<TensorId> state;  // as StateSpecs lists it, the master weight included

  bool is_trained() const { return gradient != TensorId(); }
};

struct Parameter {
  std::string name;  // as in Hugging Face's files: "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;
  TensorsOfParameter tensors;
};

struct StepBatch {
  std::span<const int32_t> inputs;   // [accumulate × micro_batch × sequence] token ids
  std::span<const int32_t> targets;  // same shape: the token after each input
  double gradient_scale = 1.0;  // multiplies each micro-batch's loss: loss scale / accumulation
};

// A summary over all gradients of a step as they are stored (scaled). Sums are fp64 over fixed
// blocks.
struct GradientSummary {
  double sum_of_squares = 0;
  bool finite = true;
};

// Budgets within which the model finds room for the tiles that it leases together, in addition to
// all tiles of the roles that are placed on the device or in pinned memory.
struct MinimumBudgets {
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;
  std::array<uint64_t, kNumRoles> role_bytes = {};  // room for all tiles of a role
};

// Thread-compatible. The engine and pool must outlive it. After an error the engine's tensors may
// be half updated, so the caller must go back to the last commit.
class Model {
 public:
  // Registers every tensor. A tensor that the last commit holds keeps those bytes, and `source` is
  // not called for it. InvalidArgument names a parameter whose values are not finite.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Engine* engine, ThreadPool* pool,
                                                       const hf::ModelConfig& config,
                                                       const ModelOptions& options,
                                                       const WeightSource& source);
  // Computes with `compute` instead of the host.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Engine* engine,
                                                       std::unique_ptr<Compute> compute,
                                                       const hf::ModelConfig& config,
                                                       const ModelOptions& options,
                                                       const WeightSource& source);
  virtual ~Model() = default;

  // Runs forward and backward for a step's micro-batches. Each micro-batch adds its gradients to
  // their tensors, with one rounding per use of a parameter. Returns the mean cross-entropy over
  // all tokens, unscaled.
  virtual absl::StatusOr<double> Train(const StepBatch& step) = 0;
  // Summarizes the gradients of the last step.
  virtual GradientSummary gradients() const = 0;
  // Runs forward only, and returns the mean cross-entropy.
  virtual absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                                      std::span<const int32_t> targets) = 0;
  // Runs forward only, over one window of any length up to `sequence`. Returns the last position's
  // logits, [vocab_size] fp32.
  virtual absl::StatusOr<std::vector<float>> NextTokenLogits(std::span<const int32_t> tokens) = 0;

  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual uint64_t num_parameters() const = 0;
  // Bytes of scratch that the model needs at its peak, without the memory that BLAS keeps.
  virtual uint64_t workspace_bytes() const = 0;
  // The GPU that computes it; none on the host.
  virtual std::optional<ComputedBy> computed_by() const = 0;
  // How often it has waited for a device.
  virtual int64_t device_waits() const = 0;
};

// The functions below are pure, so that budgets can be checked before anything is opened.
MinimumBudgets SmallestBudgets(const hf::ModelConfig& config, const ModelOptions& options,
                               const Placement& placement = {});
// The tiles of a new run within these budgets: those of TilesOf, halved until pinned memory and the
// device have room for the tiles of four leases, so that tiles move while others are in use; but
// not below 1 Mi elements. So no run is refused whose budgets hold tiles of 1 Mi elements. The last
// bits of numbers depend on tiles (see TilesOf), so those of a model of 2^28 parameters or more
// depend on budgets that are too small for its own tiles.
TileSizes TilesWithin(const hf::ModelConfig& config, const ModelOptions& options,
                      const Placement& placement, uint64_t device_bytes, uint64_t pinned_bytes);
// Bytes of all engine tensors that a commit holds, and of all transient ones. The room that each
// takes where it rests counts every tile rounded up to 4 KiB.
struct StateBytes {
  uint64_t committed = 0;
  uint64_t transient = 0;
  uint64_t committed_room = 0;
  uint64_t transient_room = 0;
};
StateBytes ModelStateBytes(const hf::ModelConfig& config, const ModelOptions& options);
// The most that a store holds while the state of such a run is converted from format `from`: the
// previous commit, and the tensors that the next commit writes anew.
StateBytes ConversionBytes(const hf::ModelConfig& config, const ModelOptions& options,
                           StateFormat from);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_MODEL_H_
