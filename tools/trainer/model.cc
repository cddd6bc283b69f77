// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/model.h"

#include <algorithm>
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
#include "tools/trainer/block.h"
#include "tools/trainer/context.h"
#include "tools/trainer/embedding.h"
#include "tools/trainer/gradients.h"
#include "tools/trainer/head.h"
#include "tools/trainer/kernels/gemm.h"
#include "tools/trainer/kernels/rope.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {
namespace {

// All scratch buffers of the model.
struct ModelScratch {
  float* rope_cosines = nullptr;
  float* rope_sines = nullptr;
  Residual residual;
  float* gradient = nullptr;  // the residual's gradient, [tokens, hidden]; training only
  NormScratch norm;
  BlockScratch block;
  HeadScratch head;

  void Bind(ScratchLayout& layout, ModelContext& context) {
    const hf::ModelConfig& config = context.config;
    const int64_t tokens = context.options.micro_batch * context.options.sequence;
    rope_cosines = layout.Take<float>(context.options.sequence * config.head_dim / 2);
    rope_sines = layout.Take<float>(context.options.sequence * config.head_dim / 2);
    residual.x = layout.Take<float>(tokens * config.hidden_size);
    residual.middle = layout.Take<float>(tokens * config.hidden_size);
    norm.Bind(layout, tokens, config.hidden_size);
    context.Bind(layout);
    if (context.options.training) {
      gradient = layout.Take<float>(tokens * config.hidden_size);
      context.gradients->Bind(layout);
    }
    // Blocks and the head are never active together.
    const uint64_t mark = layout.mark();
    block.Bind(layout, context);
    layout.Rewind(mark);
    head.Bind(layout, context);
  }
};

class DecoderModel : public Model {
 public:
  DecoderModel(Engine* engine, ThreadPool* pool, const hf::ModelConfig& config,
               const ModelOptions& options) {
    context_.config = config;
    context_.options = options;
    context_.pool = pool;
    context_.engine = engine;
  }

  absl::Status Init(const WeightSource& source);

  absl::StatusOr<double> Train(const StepBatch& step) override;
  GradientSummary gradients() const override {
    return gradients_.has_value() ? gradients_->Summary() : GradientSummary();
  }
  absl::StatusOr<double> Loss(std::span<const int32_t> inputs,
                              std::span<const int32_t> targets) override;
  absl::StatusOr<std::vector<float>> NextTokenLogits(std::span<const int32_t> tokens) override;

  const std::vector<Parameter>& parameters() const override { return context_.parameters; }
  uint64_t num_parameters() const override;
  uint64_t workspace_bytes() const override { return workspace_->size_bytes(); }

 private:
  absl::Status CheckTokens(std::span<const int32_t> tokens) const;
  absl::Status CheckTargets(std::span<const int32_t> inputs, std::span<const int32_t> targets,
                            int64_t most_windows) const;
  absl::Status DeclareForward(const TokenOrder& order);
  absl::Status Blocks(const BatchShape& batch);
  BatchShape ShapeOf(const MicroBatch& batch) const {
    return {context_.options.micro_batch, context_.options.sequence, batch.index};
  }
  absl::Status LookupForward(std::span<const MicroBatch> together,
                             std::span<const TokenOrder> orders);
  absl::Status BlocksForward(std::span<const MicroBatch> together);
  absl::Status BlocksBackward(std::span<const MicroBatch> together);
  absl::Status LookupBackward(std::span<const TokenOrder> orders);

  ModelContext context_;
  std::optional<Gradients> gradients_;
  std::optional<Activations> activations_;
  std::unique_ptr<Workspace> workspace_;
  ModelScratch scratch_;
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<Head> head_;
};

absl::Status DecoderModel::Init(const WeightSource& source) {
  SPILLWAY_RETURN_IF_ERROR(LoadBlas(context_.pool->num_threads()));
  const hf::ModelConfig& config = context_.config;
  const ModelOptions& options = context_.options;
  SPILLWAY_ASSIGN_OR_RETURN(context_.parameters,
                            RegisterParameters(context_.engine, config, options, source));
  if (options.training) {
    gradients_.emplace(context_.engine, context_.pool, context_.parameters, options.accumulate);
    context_.gradients = &*gradients_;
    SPILLWAY_ASSIGN_OR_RETURN(
        activations_, Activations::Register(context_.engine, context_.pool, config, options));
    context_.activations = &*activations_;
  }
  ScratchLayout measure;
  scratch_.Bind(measure, context_);
  SPILLWAY_ASSIGN_OR_RETURN(workspace_, Workspace::Create(measure.peak_bytes()));
  ScratchLayout layout(workspace_->data());
  scratch_.Bind(layout, context_);

  FillRopeTables(config.rope_theta, config.head_dim, options.sequence, scratch_.rope_cosines,
                 scratch_.rope_sines);
  const RopeTables rope = {scratch_.rope_cosines, scratch_.rope_sines};
  embedding_.emplace(&context_);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.emplace_back(&context_, &scratch_.block, &scratch_.norm, rope, layer);
  }
  head_.emplace(&context_, &scratch_.head, &scratch_.norm);
  return absl::OkStatus();
}

absl::Status DecoderModel::CheckTokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < context_.config.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "token id ", tokens[i], " at position ", i,
        " of the batch is outside the model's vocabulary of ", context_.config.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status DecoderModel::CheckTargets(std::span<const int32_t> inputs,
                                        std::span<const int32_t> targets,
                                        int64_t most_windows) const {
  const ModelOptions& options = context_.options;
  if (inputs.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", inputs.size(), " inputs has ", targets.size(), " targets"));
  }
  if (inputs.empty() || inputs.size() % static_cast<size_t>(options.sequence) != 0 ||
      inputs.size() > static_cast<size_t>(most_windows * options.sequence)) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", inputs.size(),
                                                   " tokens is not 1 to ", most_windows,
                                                   " windows of ", options.sequence));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckTokens(inputs));
  return CheckTokens(targets);
}

// Declares the leases of a forward pass, because the engine may not have seen such a step before: a
// generation's next token, or the single window of an evaluation. The leases are the lookup's
// tiles, then the tiles of each parameter once, in order, and the head's.
absl::Status DecoderModel::DeclareForward(const TokenOrder& order) {
  std::vector<Use> uses = embedding_->LookupUses(order);
  const auto add = [&](size_t parameter) {
    const uint64_t num_tiles = context_.WeightSpec(parameter).num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile)
      uses.push_back(
          {{context_.parameters[parameter].tensors.weight, tile}, Tier::kDevice, Access::kRead});
  };
  for (size_t p = kEmbeddingIndex + 1; p <= FinalNormIndex(context_.config); ++p) add(p);
  add(HeadIndex(context_.config));
  context_.engine->ClearPrefetch();
  return context_.engine->Prefetch(uses);
}

// Runs the blocks forward and saves nothing.
absl::Status DecoderModel::Blocks(const BatchShape& batch) {
  for (const Block& block : blocks_) {
    SPILLWAY_RETURN_IF_ERROR(block.Forward(batch, /*save=*/false, scratch_.residual));
  }
  return absl::OkStatus();
}

// --- Training: micro-batches that pass through the model together. A single micro-batch keeps its
// residual and the residual's gradient in scratch throughout. If there are several, each one's are
// loaded before use and saved after it.

absl::Status DecoderModel::LookupForward(std::span<const MicroBatch> together,
                                         std::span<const TokenOrder> orders) {
  float* const x = scratch_.residual.x;
  const bool several = together.size() > 1;
  for (uint64_t tile = 0; tile < embedding_->num_tiles(); ++tile) {
    for (const MicroBatch& batch : together) {
      if (several && tile > 0) {
        SPILLWAY_RETURN_IF_ERROR(
            activations_->Load(batch.index, 0, Activation::kInput, After::kForget, x));
      }
      SPILLWAY_RETURN_IF_ERROR(
          embedding_->LookupTile(orders[static_cast<size_t>(batch.index)].tiles()[tile], x));
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(activations_->Save(batch.index, 0, Activation::kInput, x));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DecoderModel::BlocksForward(std::span<const MicroBatch> together) {
  Residual& residual = scratch_.residual;
  for (int64_t layer = 0; layer < context_.config.num_layers; ++layer) {
    for (const MicroBatch& batch : together) {
      const bool several = together.size() > 1;
      SPILLWAY_RETURN_IF_ERROR(
          several
              ? activations_->Load(batch.index, layer, Activation::kInput, After::kKeep, residual.x)
              : activations_->Save(batch.index, layer, Activation::kInput, residual.x));
      SPILLWAY_RETURN_IF_ERROR(
          blocks_[static_cast<size_t>(layer)].Forward(ShapeOf(batch), /*save=*/true, residual));
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(
            activations_->Save(batch.index, layer + 1, Activation::kInput, residual.x));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DecoderModel::BlocksBackward(std::span<const MicroBatch> together) {
  float* const gradient = scratch_.gradient;
  for (int64_t layer = context_.config.num_layers; layer-- > 0;) {
    for (const MicroBatch& batch : together) {
      const bool several = together.size() > 1;
      gradients_->BeginMicroBatch(batch.index);
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(activations_->LoadGradient(batch.index, After::kForget, gradient));
      }
      SPILLWAY_RETURN_IF_ERROR(blocks_[static_cast<size_t>(layer)].Backward(
          ShapeOf(batch), scratch_.residual, gradient));
      // Below the first layer only the lookup uses the gradient.
      const bool is_used_again =
          layer > 0 ? several
                    : context_.options.accumulate > 1 && gradients_->HasGradient(kEmbeddingIndex);
      if (is_used_again) {
        SPILLWAY_RETURN_IF_ERROR(activations_->SaveGradient(batch.index, gradient));
      }
    }
  }
  return absl::OkStatus();
}

// Runs once for the whole step, after the head has added its share for every micro-batch, so that
// the order of additions is the same in both accumulation orders.
absl::Status DecoderModel::LookupBackward(std::span<const TokenOrder> orders) {
  if (!gradients_->HasGradient(kEmbeddingIndex)) return absl::OkStatus();
  const uint64_t last = embedding_->num_tiles() - 1;
  for (uint64_t tile = 0; tile <= last; ++tile) {
    for (size_t i = 0; i < orders.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      gradients_->BeginMicroBatch(index);
      if (orders.size() > 1) {
        SPILLWAY_RETURN_IF_ERROR(activations_->LoadGradient(
            index, tile == last ? After::kForget : After::kKeep, scratch_.gradient));
      }
      SPILLWAY_RETURN_IF_ERROR(
          embedding_->BackwardTile(orders[i].tiles()[tile], scratch_.gradient));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DecoderModel::Train(const StepBatch& step) {
  const ModelOptions& options = context_.options;
  if (!options.training) {
    return absl::FailedPreconditionError("this model was created without training state");
  }
  const int64_t tokens = options.micro_batch * options.sequence;
  SPILLWAY_RETURN_IF_ERROR(
      CheckTargets(step.inputs, step.targets, options.accumulate * options.micro_batch));
  if (static_cast<int64_t>(step.inputs.size()) != options.accumulate * tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", step.inputs.size(),
                                                   " tokens where the model was made for ",
                                                   options.accumulate, " × ", tokens));
  }
  std::vector<MicroBatch> batches;
  std::vector<TokenOrder> orders;
  for (int64_t i = 0; i < options.accumulate; ++i) {
    const auto part = [&](std::span<const int32_t> of) {
      return of.subspan(static_cast<size_t>(i * tokens), static_cast<size_t>(tokens));
    };
    batches.push_back({i, part(step.targets)});
    orders.push_back(embedding_->Order(part(step.inputs)));
  }
  context_.engine->ClearPrefetch();  // left by a forward pass that failed
  const size_t count = options.by_layer() ? batches.size() : 1;
  double losses = 0;
  for (size_t first = 0; first < batches.size(); first += count) {
    const auto together = std::span<const MicroBatch>(batches).subspan(first, count);
    SPILLWAY_RETURN_IF_ERROR(LookupForward(together, orders));
    SPILLWAY_RETURN_IF_ERROR(BlocksForward(together));
    SPILLWAY_ASSIGN_OR_RETURN(
        const double loss,
        head_->Train(together, step.gradient_scale, scratch_.residual.x, scratch_.gradient));
    losses += loss;
    SPILLWAY_RETURN_IF_ERROR(BlocksBackward(together));
  }
  SPILLWAY_RETURN_IF_ERROR(LookupBackward(orders));
  return losses / static_cast<double>(options.accumulate);
}

absl::StatusOr<double> DecoderModel::Loss(std::span<const int32_t> inputs,
                                          std::span<const int32_t> targets) {
  SPILLWAY_RETURN_IF_ERROR(CheckTargets(inputs, targets, context_.options.micro_batch));
  const int64_t length = context_.options.sequence;
  const BatchShape shape = {static_cast<int64_t>(inputs.size()) / length, length};
  const TokenOrder order = embedding_->Order(inputs);
  SPILLWAY_RETURN_IF_ERROR(DeclareForward(order));
  SPILLWAY_RETURN_IF_ERROR(embedding_->Lookup(order, scratch_.residual.x));
  SPILLWAY_RETURN_IF_ERROR(Blocks(shape));
  SPILLWAY_ASSIGN_OR_RETURN(const double loss, head_->Loss(scratch_.residual.x, targets));
  return loss;
}

absl::StatusOr<std::vector<float>> DecoderModel::NextTokenLogits(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length < 1 || length > context_.options.sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", length, " tokens is not 1 to ", context_.options.sequence));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckTokens(tokens));
  const TokenOrder order = embedding_->OrderOfFew(tokens);
  SPILLWAY_RETURN_IF_ERROR(DeclareForward(order));
  SPILLWAY_RETURN_IF_ERROR(embedding_->Lookup(order, scratch_.residual.x));
  SPILLWAY_RETURN_IF_ERROR(Blocks({1, length}));
  SPILLWAY_ASSIGN_OR_RETURN(
      std::vector<float> logits,
      head_->Logits(scratch_.residual.x + (length - 1) * context_.config.hidden_size));
  return logits;
}

uint64_t DecoderModel::num_parameters() const {
  uint64_t total = 0;
  for (const ParameterShape& parameter : ListParameters(context_.config)) {
    total += static_cast<uint64_t>(parameter.elements());
  }
  return total;
}

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

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Engine* engine, ThreadPool* pool,
                                                     const hf::ModelConfig& config,
                                                     const ModelOptions& options,
                                                     const WeightSource& source) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  auto model = std::make_unique<DecoderModel>(engine, pool, config, options);
  SPILLWAY_RETURN_IF_ERROR(model->Init(source));
  return model;
}

}  // namespace spillway::trainer
