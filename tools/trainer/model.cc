// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/model.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/dry_compute.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/description.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/recording_engine.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {
namespace {

class WalkedModel : public Model {
 public:
  WalkedModel(Engine* engine, std::unique_ptr<Compute> compute, const hf::ModelConfig& config,
              const ModelOptions& options)
      : engine_(engine),
        description_(Describe(config)),
        options_(options),
        compute_(std::move(compute)),
        dry_engine_(engine) {}

  absl::Status Init(const hf::ModelConfig& config, const WeightSource& source);

  absl::StatusOr<double> Train(const StepBatch& step) override;
  GradientSummary gradients() const override { return gradients_; }
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                              std::span<const int32_t> targets) override;
  absl::StatusOr<std::vector<float>> NextTokenLogits(std::span<const int32_t> tokens) override;

  const std::vector<Parameter>& parameters() const override { return parameters_; }
  uint64_t num_parameters() const override;
  uint64_t workspace_bytes() const override { return compute_->scratch_bytes(); }
  std::optional<ComputedBy> computed_by() const override { return compute_->computed_by(); }
  int64_t device_waits() const override { return compute_->waits(); }

 private:
  absl::Status CheckTokens(std::span<const int32_t> tokens) const;
  absl::Status CheckTargets(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                            int64_t most_windows) const;
  template <typename Pass>
  absl::StatusOr<StepResults> RunForward(const Pass& pass);
  absl::StatusOr<StepResults> CollectAfter(const absl::Status& walked);

  Engine* const engine_;
  const Description description_;
  const ModelOptions options_;
  const std::unique_ptr<Compute> compute_;
  std::vector<Parameter> parameters_;
  SavedTensors saved_;
  std::unique_ptr<Walk> walk_;
  // The same walk without bytes, which lists the leases of a forward pass before it is run.
  RecordingEngine dry_engine_;
  DryCompute dry_compute_;
  std::unique_ptr<Walk> dry_walk_;
  GradientSummary gradients_;
};

absl::Status WalkedModel::Init(const hf::ModelConfig& config, const WeightSource& source) {
  SPILLWAY_ASSIGN_OR_RETURN(parameters_, RegisterParameters(engine_, config, options_, source));
  SPILLWAY_ASSIGN_OR_RETURN(saved_, RegisterActivations(engine_, description_, options_));
  WalkParts parts = {.engine = engine_,
                     .compute = compute_.get(),
                     .model = &description_,
                     .options = &options_,
                     .parameters = parameters_,
                     .saved = &saved_};
  SPILLWAY_ASSIGN_OR_RETURN(walk_, Walk::Create(parts));
  parts.engine = &dry_engine_;
  parts.compute = &dry_compute_;
  SPILLWAY_ASSIGN_OR_RETURN(dry_walk_, Walk::Create(parts));
  return absl::OkStatus();
}

absl::Status WalkedModel::CheckTokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < description_.vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "token id ", tokens[i], " at position ", i,
        " of the batch is outside the model's vocabulary of ", description_.vocabulary));
  }
  return absl::OkStatus();
}

absl::Status WalkedModel::CheckTargets(std::span<const int32_t> inputs,
                                       std::span<const int32_t> targets,
                                       int64_t most_windows) const {
  if (inputs.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", inputs.size(), " inputs has ", targets.size(), " targets"));
  }
  if (inputs.empty() || inputs.size() % static_cast<size_t>(options_.sequence) != 0 ||
      inputs.size() > static_cast<size_t>(most_windows * options_.sequence)) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", inputs.size(),
                                                   " tokens is not 1 to ", most_windows,
                                                   " windows of ", options_.sequence));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckTokens(inputs));
  return CheckTokens(targets);
}

// Waits for the walk's results. After an error this only waits: what the walk named in host memory
// is free then.
absl::StatusOr<StepResults> WalkedModel::CollectAfter(const absl::Status& walked) {
  absl::StatusOr<StepResults> results = compute_->Collect();
  SPILLWAY_RETURN_IF_ERROR(walked);
  return results;
}

// Declares the leases of a forward pass, and then runs it: the engine may not have seen such a step
// before, such as a generation's next token or the single window of an evaluation.
template <typename Pass>
absl::StatusOr<StepResults> WalkedModel::RunForward(const Pass& pass) {
  dry_engine_.Clear();
  SPILLWAY_RETURN_IF_ERROR(pass(dry_walk_.get()));
  engine_->ClearPrefetch();
  SPILLWAY_RETURN_IF_ERROR(engine_->Prefetch(dry_engine_.Uses()));
  return CollectAfter(pass(walk_.get()));
}

absl::StatusOr<double> WalkedModel::Train(const StepBatch& step) {
  if (!options_.training) {
    return absl::FailedPreconditionError("this model was created without training state");
  }
  const int64_t tokens = options_.micro_batch * options_.sequence;
  SPILLWAY_RETURN_IF_ERROR(
      CheckTargets(step.inputs, step.targets, options_.accumulate * options_.micro_batch));
  if (static_cast<int64_t>(step.inputs.size()) != options_.accumulate * tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", step.inputs.size(),
                                                   " tokens where the model was made for ",
                                                   options_.accumulate, " × ", tokens));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const StepResults results, CollectAfter(walk_->Train(step)));
  gradients_ = {.sum_of_squares = results.sum_of_squares,
                .finite = std::isfinite(results.sum_of_squares)};
  return results.loss / static_cast<double>(options_.accumulate);
}

absl::StatusOr<double> WalkedModel::Loss(std::span<const int32_t> inputs,
                                         std::span<const int32_t> targets) {
  SPILLWAY_RETURN_IF_ERROR(CheckTargets(inputs, targets, options_.micro_batch));
  const auto windows = static_cast<int64_t>(inputs.size()) / options_.sequence;
  SPILLWAY_ASSIGN_OR_RETURN(const StepResults results, RunForward([&](Walk* walk) {
                              return walk->Evaluate(windows, inputs, targets);
                            }));
  return results.loss;
}

absl::StatusOr<std::vector<float>> WalkedModel::NextTokenLogits(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length < 1 || length > options_.sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", length, " tokens is not 1 to ", options_.sequence));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckTokens(tokens));
  SPILLWAY_ASSIGN_OR_RETURN(StepResults results,
                            RunForward([&](Walk* walk) { return walk->Predict(tokens); }));
  return std::move(results.logits);
}

uint64_t WalkedModel::num_parameters() const {
  uint64_t total = 0;
  for (const ParameterShape& parameter : description_.parameters)
    total += static_cast<uint64_t>(parameter.elements());
  return total;
}

}  // namespace

absl::Status CheckOptions(const ModelOptions& options) {
  if (options.sequence < 1 || options.micro_batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", options.micro_batch,
                                                   " windows of ", options.sequence,
                                                   " tokens: both must be at least 1"));
  }
  if (options.accumulate < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", options.accumulate, " micro-batches: at least 1"));
  }
  for (const int64_t elements : {options.tiles.values, options.tiles.state}) {
    if (elements >= 0 && elements <= kMostTileElements) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tiles of ", elements, " elements: from 1 to ", kMostTileElements, ", or 0"));
  }
  if (options.gradient_dtype != DType::kF32 &&
      options.gradient_dtype != ElementType(options.precision)) {
    return absl::InvalidArgumentError("gradients are fp32, or of the precision's 16 bits");
  }
  if (options.training && !Exists(options.rule, options.state_format)) {
    return absl::InvalidArgumentError(
        "the update rule keeps no state that could rest in the state format");
  }
  if (options.training && options.state_format == StateFormat::kCompact &&
      (options.precision == Precision::kFp32 || !options.groups.fp32.empty())) {
    return absl::InvalidArgumentError(
        "compact state is the rest of 16-bit weights, and a weight in fp32 has none");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Engine* engine, ThreadPool* pool,
                                                     const hf::ModelConfig& config,
                                                     const ModelOptions& options,
                                                     const WeightSource& source) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Compute> compute, HostCompute::Create(pool));
  return Create(engine, std::move(compute), config, options, source);
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Engine* engine,
                                                     std::unique_ptr<Compute> compute,
                                                     const hf::ModelConfig& config,
                                                     const ModelOptions& options,
                                                     const WeightSource& source) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  auto model = std::make_unique<WalkedModel>(engine, std::move(compute), config, options);
  SPILLWAY_RETURN_IF_ERROR(model->Init(config, source));
  return model;
}

}  // namespace spillway::trainer
