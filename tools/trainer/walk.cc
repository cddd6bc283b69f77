// SPDX-License-Identifier: Apache-2.0
//
// A step, in its order: lookup, blocks forward, head, blocks backward, gradient of the lookup. A
// single micro-batch keeps its residual and the residual's gradient in scratch throughout. If
// several pass together, each one's are loaded before use and saved after it.

#include "tools/trainer/walk.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"

namespace spillway::trainer {

Walk::Walk(const WalkParts& parts)
    : parts_(parts),
      model_(*parts.model),
      options_(*parts.options),
      compute_(*parts.compute),
      element_(ElementType(parts.options->precision)),
      product_(parts.options->precision == Precision::kBf16 ? DType::kBF16 : DType::kF32),
      residual_(ResidualType(parts.options->precision)) {
  size_t sums = 0;
  for (size_t p = 0; p < parts.parameters.size(); ++p) {
    first_sum_.push_back(sums);
    if (HasGradient(p)) sums += WeightSpec(p).num_tiles();
  }
}

absl::StatusOr<std::unique_ptr<Walk>> Walk::Create(const WalkParts& parts) {
  std::unique_ptr<Walk> walk(new Walk(parts));
  ScratchNeeds needs = walk->Needs();
  needs.view_bytes = walk->LayOut(nullptr);
  SPILLWAY_ASSIGN_OR_RETURN(std::byte* const base, parts.compute->Reserve(needs));
  walk->LayOut(base);
  for (size_t r = 0; r < walk->ropes_.size(); ++r) {
    const auto& [cosines, sines] = walk->ropes_[r];
    parts.compute->FillRope(parts.model->ropes[r], cosines, sines);
  }
  return walk;
}

Walk::Batch Walk::BatchOf(int64_t index, int64_t windows, int64_t length,
                          std::span<const int32_t> inputs, std::span<const int32_t> targets,
                          bool leases_every_tile) const {
  Batch batch = {.windows = windows,
                 .length = length,
                 .index = index,
                 .targets = targets,
                 .tokens = {},
                 .positions = {}};
  const auto order = [&](size_t parameter, std::span<const int32_t> rows) {
    const TensorSpec& table = WeightSpec(parameter);
    const std::optional<uint64_t> num_tiles =
        leases_every_tile ? std::optional(table.num_tiles()) : std::nullopt;
    return TableOrder(rows, table.tile_rows > 0 ? table.tile_rows : table.shape[0], num_tiles);
  };
  batch.tokens = order(model_.tokens, inputs);
  if (model_.positions == kNone) return batch;
  std::vector<int32_t> positions(inputs.size());
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
  batch.positions = order(model_.positions, positions);
  return batch;
}

absl::Status Walk::Train(const StepBatch& step) {
  const auto tokens = static_cast<size_t>(options_.micro_batch * options_.sequence);
  batches_.clear();
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const auto part = [&](std::span<const int32_t> of) {
      return of.empty() ? of : of.subspan(static_cast<size_t>(i) * tokens, tokens);
    };
    batches_.push_back(BatchOf(i, options_.micro_batch, options_.sequence, part(step.inputs),
                               part(step.targets), /*leases_every_tile=*/true));
  }
  parts_.engine->ClearPrefetch();  // left by a forward pass that failed
  const size_t count = options_.by_layer() ? batches_.size() : 1;
  for (size_t first = 0; first < batches_.size(); first += count) {
    const auto together = std::span(batches_).subspan(first, count);
    SPILLWAY_RETURN_IF_ERROR(LookUpForward(together));
    SPILLWAY_RETURN_IF_ERROR(BlocksForward(together));
    SPILLWAY_RETURN_IF_ERROR(TrainHead(together, step.gradient_scale));
    SPILLWAY_RETURN_IF_ERROR(BlocksBackward(together));
  }
  return LookUpBackward();
}

absl::Status Walk::Evaluate(int64_t windows, std::span<const int32_t> inputs,
                            std::span<const int32_t> targets) {
  batches_.clear();
  batches_.push_back(BatchOf(0, windows, options_.sequence, inputs, targets,
                             /*leases_every_tile=*/true));
  SPILLWAY_RETURN_IF_ERROR(LookUpForward(batches_));
  for (size_t block = 0; block < model_.blocks.size(); ++block)
    SPILLWAY_RETURN_IF_ERROR(ForwardBlock(block, batches_[0], /*save=*/false));
  return GatherHead(batches_, /*save=*/false);
}

absl::Status Walk::Predict(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  batches_.clear();
  batches_.push_back(BatchOf(0, 1, length, tokens, {}, /*leases_every_tile=*/false));
  SPILLWAY_RETURN_IF_ERROR(LookUpForward(batches_));
  for (size_t block = 0; block < model_.blocks.size(); ++block)
    SPILLWAY_RETURN_IF_ERROR(ForwardBlock(block, batches_[0], /*save=*/false));
  const HeadScratch scratch = ScratchOfHead(1);
  SPILLWAY_RETURN_IF_ERROR(
      ForwardNorm(model_.last, residuals_[0].Rows(length - 1, 1), scratch.normed));
  const uint64_t num_tiles = WeightSpec(model_.head.weight).num_tiles();
  for (uint64_t tile = 0; tile < num_tiles; ++tile) {
    const View logits = LogitsOf(tile, scratch);
    SPILLWAY_RETURN_IF_ERROR(MultiplyTile(model_.head, tile, Passes::kForward, scratch.normed,
                                          Into::kOverwrite, logits));
    compute_.TakeLogits(logits);
  }
  return absl::OkStatus();
}

// --- Embeddings ---

// Every tile is leased, whether or not it holds a token of the batch, so that the leases of a step
// do not depend on its tokens and can be planned; only Predict leases fewer.
absl::Status Walk::LookUpForward(std::span<Batch> together) {
  const bool several = together.size() > 1;
  bool is_first = true;
  const auto look_up = [&](size_t parameter, Into into, TableOrder Batch::* order) -> absl::Status {
    const size_t num_tiles = (together[0].*order).tiles().size();
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      for (const Batch& batch : together) {
        const View x = ResidualOf(0, batch);
        const SavedPass* saved = several ? &parts_.saved->Of(batch.index) : nullptr;
        if (several && !is_first)
          SPILLWAY_RETURN_IF_ERROR(Load(saved->blocks[0].input, After::kForget, x));
        SPILLWAY_RETURN_IF_ERROR(LookUpTile(parameter, (batch.*order).tiles()[tile], into, x));
        if (several) SPILLWAY_RETURN_IF_ERROR(Save(saved->blocks[0].input, x));
      }
      is_first = false;
    }
    return absl::OkStatus();
  };
  SPILLWAY_RETURN_IF_ERROR(look_up(model_.tokens, Into::kOverwrite, &Batch::tokens));
  if (model_.positions == kNone) return absl::OkStatus();
  return look_up(model_.positions, Into::kAdd, &Batch::positions);
}

// Runs once for the whole step, after the head has added its share for every micro-batch, so that
// the order of additions is the same in both accumulation orders.
absl::Status Walk::LookUpBackward() {
  struct Table {
    size_t parameter;
    TableOrder Batch::* order;
  };
  std::vector<Table> tables;
  if (HasGradient(model_.tokens)) tables.push_back({model_.tokens, &Batch::tokens});
  if (model_.positions != kNone && HasGradient(model_.positions))
    tables.push_back({model_.positions, &Batch::positions});
  // No block is under way, so a row of its scratch is free.
  const View work = ScratchOfHead(1).d_normed;
  for (const Table& table : tables) {
    const uint64_t last = WeightSpec(table.parameter).num_tiles() - 1;
    const bool is_head = table.parameter == model_.head.weight;
    for (uint64_t tile = 0; tile <= last; ++tile) {
      for (const Batch& batch : batches_) {
        const bool is_last_load = tile == last && &table == &tables.back();
        if (batches_.size() > 1) {
          SPILLWAY_RETURN_IF_ERROR(Load(parts_.saved->gradients[static_cast<size_t>(batch.index)],
                                        is_last_load ? After::kForget : After::kKeep, gradient_));
        }
        SPILLWAY_RETURN_IF_ERROR(
            LookUpGradientTile(table.parameter, (batch.*table.order).tiles()[tile], gradient_, work,
                               {.micro_batch = batch.index, .is_first = !is_head}));
      }
    }
  }
  return absl::OkStatus();
}

// --- Blocks ---

absl::Status Walk::BlocksForward(std::span<Batch> together) {
  const bool several = together.size() > 1;
  for (size_t block = 0; block < model_.blocks.size(); ++block) {
    for (const Batch& batch : together) {
      const SavedPass& saved = parts_.saved->Of(batch.index);
      const TensorId input = saved.blocks[block].input;
      const View x = ResidualOf(0, batch);
      SPILLWAY_RETURN_IF_ERROR(several ? Load(input, After::kKeep, x) : Save(input, x));
      SPILLWAY_RETURN_IF_ERROR(ForwardBlock(block, batch, /*save=*/true));
      if (!several) continue;
      const bool is_last = block + 1 == model_.blocks.size();
      SPILLWAY_RETURN_IF_ERROR(
          Save(is_last ? saved.head_input : saved.blocks[block + 1].input, ResidualOf(0, batch)));
    }
  }
  return absl::OkStatus();
}

absl::Status Walk::BlocksBackward(std::span<Batch> together) {
  const bool several = together.size() > 1;
  const bool trains_embeddings =
      HasGradient(model_.tokens) || (model_.positions != kNone && HasGradient(model_.positions));
  for (size_t block = model_.blocks.size(); block-- > 0;) {
    for (const Batch& batch : together) {
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(Load(parts_.saved->gradients[static_cast<size_t>(batch.index)],
                                      After::kForget, gradient_));
      }
      SPILLWAY_RETURN_IF_ERROR(BackwardBlock(block, batch));
      // Below the first block only the lookup uses the gradient.
      const bool is_used_again = block > 0 ? several : options_.accumulate > 1 && trains_embeddings;
      if (is_used_again) {
        SPILLWAY_RETURN_IF_ERROR(
            Save(parts_.saved->gradients[static_cast<size_t>(batch.index)], gradient_));
      }
    }
  }
  return absl::OkStatus();
}

// --- Head: final norm, logits and cross-entropy, one tile of the vocabulary at a time. The first
// pass gathers each token's softmax. The second turns each tile's logits (saved, or under
// checkpointing recomputed to the same bits) into gradients.

View Walk::LogitsOf(uint64_t tile, const HeadScratch& scratch) const {
  const TensorSpec& spec = WeightSpec(model_.head.weight);
  const int64_t first = static_cast<int64_t>(tile) * spec.tile_rows;
  const int64_t columns = std::min(spec.tile_rows, model_.vocabulary - first);
  return scratch.logits.Reshaped(scratch.logits.rows, columns);
}

// Loads the input of one of several micro-batches, and norms it.
absl::Status Walk::FetchHeadInput(const Batch& batch, After after, const View& normed) {
  const View x = ResidualOf(0, batch);
  SPILLWAY_RETURN_IF_ERROR(Load(parts_.saved->Of(batch.index).head_input, after, x));
  return ForwardNorm(model_.last, x, normed);
}

// Runs the first pass and adds the losses. Leaves each token's softmax in scratch and, if there is
// only one micro-batch, the normed input.
absl::Status Walk::GatherHead(std::span<Batch> together, bool save) {
  const bool several = together.size() > 1;
  const int64_t tokens = together[0].rows();
  const HeadScratch scratch = ScratchOfHead(tokens);
  for (size_t i = 0; i < together.size(); ++i) compute_.StartSoftmax(scratch.states[i], tokens);
  if (!several) {
    SPILLWAY_RETURN_IF_ERROR(ForwardNorm(model_.last, ResidualOf(0, together[0]), scratch.normed));
  }
  const TensorSpec& spec = WeightSpec(model_.head.weight);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const View logits = LogitsOf(tile, scratch);
    for (size_t i = 0; i < together.size(); ++i) {
      const Batch& batch = together[i];
      if (several) SPILLWAY_RETURN_IF_ERROR(FetchHeadInput(batch, After::kKeep, scratch.normed));
      SPILLWAY_RETURN_IF_ERROR(MultiplyTile(model_.head, tile, Passes::kForward, scratch.normed,
                                            Into::kOverwrite, logits));
      compute_.GatherSoftmax({.logits = logits,
                              .first_token = static_cast<int64_t>(tile) * spec.tile_rows,
                              .targets = batch.targets,
                              .states = scratch.states[i]});
      if (save) SPILLWAY_RETURN_IF_ERROR(Save(parts_.saved->Of(batch.index).logits[tile], logits));
    }
  }
  for (size_t i = 0; i < together.size(); ++i) compute_.AddLoss(scratch.states[i], tokens);
  return absl::OkStatus();
}

// Runs both passes, for each loss times `scale`. For one micro-batch, leaves the gradient of the
// head's input in gradient_. For several, saves each one's.
absl::Status Walk::TrainHead(std::span<Batch> together, double scale) {
  const bool several = together.size() > 1;
  const int64_t tokens = together[0].rows();
  SPILLWAY_RETURN_IF_ERROR(GatherHead(together, !options_.checkpoint_activations));
  // A scale beyond fp32's range becomes infinity, so that the gradients show it like any overflow.
  const double of_token = scale / static_cast<double>(tokens);
  const float scale_of_token = of_token <= std::numeric_limits<float>::max()
                                   ? static_cast<float>(of_token)
                                   : std::numeric_limits<float>::infinity();
  const HeadScratch scratch = ScratchOfHead(tokens);
  const auto gradient_of = [&](const Batch& batch) {
    return parts_.saved->gradients[static_cast<size_t>(batch.index)];
  };
  const uint64_t num_tiles = WeightSpec(model_.head.weight).num_tiles();
  for (uint64_t tile = 0; tile < num_tiles; ++tile) {
    const View logits = LogitsOf(tile, scratch);
    for (size_t i = 0; i < together.size(); ++i) {
      const Batch& batch = together[i];
      if (several) {
        SPILLWAY_RETURN_IF_ERROR(FetchHeadInput(batch, After::kKeep, scratch.normed));
        if (tile > 0)
          SPILLWAY_RETURN_IF_ERROR(Load(gradient_of(batch), After::kForget, scratch.d_normed));
      }
      if (options_.checkpoint_activations) {
        SPILLWAY_RETURN_IF_ERROR(MultiplyTile(model_.head, tile, Passes::kForward, scratch.normed,
                                              Into::kOverwrite, logits));
      }
      SPILLWAY_RETURN_IF_ERROR(
          LogitsGradient(batch, tile, scratch.states[i], scale_of_token, logits));
      SPILLWAY_RETURN_IF_ERROR(MultiplyTile(model_.head, tile, Passes::kBackward, logits,
                                            tile == 0 ? Into::kOverwrite : Into::kAdd,
                                            scratch.d_normed));
      // The lookup adds to a tied embedding after the head.
      SPILLWAY_RETURN_IF_ERROR(
          AddWeightGradientTile(model_.head, tile, logits, scratch.normed,
                                {.micro_batch = batch.index, .is_last = !model_.is_tied()}));
      if (several) SPILLWAY_RETURN_IF_ERROR(Save(gradient_of(batch), scratch.d_normed));
    }
  }
  for (const Batch& batch : together) {
    if (several) {
      SPILLWAY_RETURN_IF_ERROR(FetchHeadInput(batch, After::kForget, scratch.normed));
      SPILLWAY_RETURN_IF_ERROR(Load(gradient_of(batch), After::kForget, scratch.d_normed));
    }
    compute_.Zero(gradient_);
    SPILLWAY_RETURN_IF_ERROR(
        BackwardNorm(model_.last, scratch.d_normed, ResidualOf(0, batch), gradient_, batch.index));
    if (several) SPILLWAY_RETURN_IF_ERROR(Save(gradient_of(batch), gradient_));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
