// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/head.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/status_macros.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {

void HeadScratch::Bind(ScratchLayout& layout, const ModelContext& context) {
  const int64_t tokens = context.options.micro_batch * context.options.sequence;
  const int64_t tile_outputs = context.WeightSpec(HeadIndex(context.config)).tile_rows;
  normed = layout.Take<float>(tokens * context.config.hidden_size);
  logits = layout.Take<float>(tokens * tile_outputs);
  states = layout.Take<OnlineSoftmax>(tokens);
  if (context.options.training) d_normed = layout.Take<float>(tokens * context.config.hidden_size);
}

Head::Head(ModelContext* context, const HeadScratch* scratch, const NormScratch* norm_scratch)
    : context_(context),
      scratch_(scratch),
      norm_(context, norm_scratch, FinalNormIndex(context->config)),
      linear_(context, HeadIndex(context->config)) {}

// The first pass; leaves the normed input and each token's softmax in scratch.
absl::StatusOr<double> Head::Gather(const float* x, std::span<const int32_t> targets,
                                    bool save) const {
  const auto tokens = static_cast<int64_t>(targets.size());
  const HeadScratch& s = *scratch_;
  SPILLWAY_HF_RETURN_IF_ERROR(norm_.Forward(x, tokens, s.normed));
  for (int64_t t = 0; t < tokens; ++t) s.states[t] = OnlineSoftmax();
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    const int64_t columns = linear_.tile_outputs(tile);
    SPILLWAY_HF_RETURN_IF_ERROR(
        linear_.ForwardTile(tile, s.normed, tokens, Into::kOverwrite, s.logits, columns));
    context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
      GatherSoftmax(s.logits + begin * columns, end - begin, linear_.first_output(tile), columns,
                    targets.data() + begin, s.states + begin);
    });
    if (save) SPILLWAY_HF_RETURN_IF_ERROR(context_->activations->SaveLogits(tile, s.logits));
  }
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) sum += s.states[t].Loss();
  return sum / static_cast<double>(tokens);
}

absl::StatusOr<double> Head::Loss(const float* x, std::span<const int32_t> targets) const {
  return Gather(x, targets, /*save=*/false);
}

absl::StatusOr<double> Head::Train(const float* x, std::span<const int32_t> targets, double scale,
                                   float* gradient) const {
  const auto tokens = static_cast<int64_t>(targets.size());
  const HeadScratch& s = *scratch_;
  SPILLWAY_HF_ASSIGN_OR_RETURN(const double loss,
                               Gather(x, targets, !context_->options.checkpoint_activations));
  // A scale past fp32 is an overflow like any other: the gradients show it.
  const double of_token = scale / static_cast<double>(tokens);
  const float scale_of_token = of_token <= std::numeric_limits<float>::max()
                                   ? static_cast<float>(of_token)
                                   : std::numeric_limits<float>::infinity();
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    const int64_t columns = linear_.tile_outputs(tile);
    SPILLWAY_HF_RETURN_IF_ERROR(BackwardTile(tile, targets, scale_of_token));
    SPILLWAY_HF_RETURN_IF_ERROR(linear_.BackwardInputTile(
        tile, s.logits, columns, tokens, tile == 0 ? Into::kOverwrite : Into::kAdd, s.d_normed));
    SPILLWAY_HF_RETURN_IF_ERROR(
        linear_.BackwardWeightTile(tile, s.logits, columns, s.normed, tokens));
  }
  const int64_t elements = tokens * context_->config.hidden_size;
  std::memset(gradient, 0, static_cast<size_t>(elements) * sizeof(float));
  SPILLWAY_HF_RETURN_IF_ERROR(norm_.Backward(s.d_normed, x, tokens, gradient));
  return loss;
}

// The gradient of a tile's logits, into scratch.
absl::Status Head::BackwardTile(uint64_t tile, std::span<const int32_t> targets,
                                float scale) const {
  const HeadScratch& s = *scratch_;
  const int64_t columns = linear_.tile_outputs(tile);
  const auto backward = [&](int64_t first, int64_t tokens, const float* logits) {
    context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
      CrossEntropyBackward(logits + begin * columns, end - begin, linear_.first_output(tile),
                           columns, targets.data() + first + begin, s.states + first + begin, scale,
                           s.logits + (first + begin) * columns);
    });
  };
  if (!context_->options.checkpoint_activations)
    return context_->activations->UseLogits(tile, backward);
  const auto tokens = static_cast<int64_t>(targets.size());
  SPILLWAY_HF_RETURN_IF_ERROR(
      linear_.ForwardTile(tile, s.normed, tokens, Into::kOverwrite, s.logits, columns));
  backward(0, tokens, s.logits);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Head::Logits(const float* row) const {
  std::vector<float> logits(static_cast<size_t>(linear_.outputs()));
  SPILLWAY_HF_RETURN_IF_ERROR(norm_.Forward(row, 1, scratch_->normed));
  for (uint64_t tile = 0; tile < linear_.num_tiles(); ++tile) {
    SPILLWAY_HF_RETURN_IF_ERROR(linear_.ForwardTile(tile, scratch_->normed, 1, Into::kOverwrite,
                                                    logits.data() + linear_.first_output(tile),
                                                    linear_.tile_outputs(tile)));
  }
  return logits;
}

}  // namespace spillway::trainer
