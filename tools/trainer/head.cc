// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/head.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/status_macros.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {

void HeadScratch::Bind(ScratchLayout& layout, const ModelContext& context) {
  const int64_t tokens = context.options.micro_batch * context.options.sequence;
  const int64_t tile_outputs = context.WeightSpec(HeadIndex(context.config)).tile_rows;
  normed = layout.Take<float>(tokens * context.config.hidden_size);
  logits = layout.Take<float>(tokens * tile_outputs);
  states = layout.Take<OnlineSoftmax>(
      tokens * (context.options.by_layer() ? context.options.accumulate : 1));
  if (context.options.training) d_normed = layout.Take<float>(tokens * context.config.hidden_size);
}

Head::Head(ModelContext* context, const HeadScratch* scratch, const NormScratch* norm_scratch)
    : context_(context),
      scratch_(scratch),
      norm_(context, norm_scratch, FinalNormIndex(context->config)),
      linear_(context, HeadIndex(context->config)) {}

// Loads the input of one of several micro-batches into x, and norms it into scratch_->normed.
absl::Status Head::Fetch(const MicroBatch& batch, After after, float* x) const {
  SPILLWAY_RETURN_IF_ERROR(context_->activations->Load(batch.index, context_->config.num_layers,
                                                       Activation::kInput, after, x));
  return norm_.Forward(x, static_cast<int64_t>(batch.targets.size()), scratch_->normed);
}

// Runs the first pass and returns the sum of the mean losses. Leaves each token's softmax in
// scratch and, if there is only one micro-batch, the normed input.
absl::StatusOr<double> Head::Gather(std::span<const MicroBatch> batches, bool save,
                                    float* x) const {
  const auto tokens = static_cast<int64_t>(batches[0].targets.size());
  const auto count = static_cast<int64_t>(batches.size());
  const HeadScratch& s = *scratch_;
  std::fill_n(s.states, count * tokens, OnlineSoftmax());
  if (count == 1) SPILLWAY_RETURN_IF_ERROR(norm_.Forward(x, tokens, s.normed));
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    const int64_t columns = linear_.tile_outputs(tile);
    OnlineSoftmax* states = s.states;
    for (const MicroBatch& batch : batches) {
      if (count > 1) SPILLWAY_RETURN_IF_ERROR(Fetch(batch, After::kKeep, x));
      SPILLWAY_RETURN_IF_ERROR(
          linear_.ForwardTile(tile, s.normed, tokens, Into::kOverwrite, s.logits, columns));
      context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
        GatherSoftmax(s.logits + begin * columns, end - begin, linear_.first_output(tile), columns,
                      batch.targets.data() + begin, states + begin);
      });
      if (save) {
        SPILLWAY_RETURN_IF_ERROR(context_->activations->SaveLogits(batch.index, tile, s.logits));
      }
      states += tokens;
    }
  }
  double losses = 0;
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) sum += s.states[i * tokens + t].Loss();
    losses += sum / static_cast<double>(tokens);
  }
  return losses;
}

absl::StatusOr<double> Head::Loss(float* x, std::span<const int32_t> targets) const {
  const MicroBatch batch = {.targets = targets};
  return Gather({&batch, 1}, /*save=*/false, x);
}

absl::StatusOr<double> Head::Train(std::span<const MicroBatch> batches, double scale, float* x,
                                   float* gradient) const {
  const auto tokens = static_cast<int64_t>(batches[0].targets.size());
  const bool several = batches.size() > 1;
  const HeadScratch& s = *scratch_;
  Activations& saved = *context_->activations;
  SPILLWAY_ASSIGN_OR_RETURN(const double loss,
                            Gather(batches, !context_->options.checkpoint_activations, x));
  // A scale beyond fp32's range becomes infinity, so that the gradients show it like any overflow.
  const double of_token = scale / static_cast<double>(tokens);
  const float scale_of_token = of_token <= std::numeric_limits<float>::max()
                                   ? static_cast<float>(of_token)
                                   : std::numeric_limits<float>::infinity();
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    const int64_t columns = linear_.tile_outputs(tile);
    const OnlineSoftmax* states = s.states;
    for (const MicroBatch& batch : batches) {
      context_->gradients->BeginMicroBatch(batch.index);
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(Fetch(batch, After::kKeep, x));
        if (tile > 0) {
          SPILLWAY_RETURN_IF_ERROR(saved.LoadGradient(batch.index, After::kForget, s.d_normed));
        }
      }
      SPILLWAY_RETURN_IF_ERROR(BackwardTile(tile, batch, states, scale_of_token));
      SPILLWAY_RETURN_IF_ERROR(linear_.BackwardInputTile(
          tile, s.logits, columns, tokens, tile == 0 ? Into::kOverwrite : Into::kAdd, s.d_normed));
      SPILLWAY_RETURN_IF_ERROR(
          linear_.BackwardWeightTile(tile, s.logits, columns, s.normed, tokens));
      if (several) SPILLWAY_RETURN_IF_ERROR(saved.SaveGradient(batch.index, s.d_normed));
      states += tokens;
    }
  }
  const auto elements = static_cast<size_t>(tokens * context_->config.hidden_size);
  for (const MicroBatch& batch : batches) {
    context_->gradients->BeginMicroBatch(batch.index);
    if (several) {
      SPILLWAY_RETURN_IF_ERROR(Fetch(batch, After::kForget, x));
      SPILLWAY_RETURN_IF_ERROR(saved.LoadGradient(batch.index, After::kForget, s.d_normed));
    }
    std::memset(gradient, 0, elements * sizeof(float));
    SPILLWAY_RETURN_IF_ERROR(norm_.Backward(s.d_normed, x, tokens, gradient));
    if (several) SPILLWAY_RETURN_IF_ERROR(saved.SaveGradient(batch.index, gradient));
  }
  return loss;
}

// Computes the gradient of a tile's logits into scratch_->logits.
absl::Status Head::BackwardTile(uint64_t tile, const MicroBatch& batch, const OnlineSoftmax* states,
                                float scale) const {
  const HeadScratch& s = *scratch_;
  const int64_t columns = linear_.tile_outputs(tile);
  const auto backward = [&](int64_t first, int64_t tokens, const float* logits) {
    context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
      CrossEntropyBackward(logits + begin * columns, end - begin, linear_.first_output(tile),
                           columns, batch.targets.data() + first + begin, states + first + begin,
                           scale, s.logits + (first + begin) * columns);
    });
  };
  if (!context_->options.checkpoint_activations)
    return context_->activations->UseLogits(batch.index, tile, backward);
  const auto tokens = static_cast<int64_t>(batch.targets.size());
  SPILLWAY_RETURN_IF_ERROR(
      linear_.ForwardTile(tile, s.normed, tokens, Into::kOverwrite, s.logits, columns));
  backward(0, tokens, s.logits);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Head::Logits(const float* row) const {
  std::vector<float> logits(static_cast<size_t>(linear_.outputs()));
  SPILLWAY_RETURN_IF_ERROR(norm_.Forward(row, 1, scratch_->normed));
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    SPILLWAY_RETURN_IF_ERROR(linear_.ForwardTile(tile, scratch_->normed, 1, Into::kOverwrite,
                                                 logits.data() + linear_.first_output(tile),
                                                 linear_.tile_outputs(tile)));
  }
  return logits;
}

}  // namespace spillway::trainer
