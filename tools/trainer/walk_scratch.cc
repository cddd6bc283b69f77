// SPDX-License-Identifier: Apache-2.0
//
// Where the scratch of a walk lies. A layout without memory measures it; a layout over the
// Compute's memory, or over none in a dry run, assigns it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "tools/trainer/walk.h"

namespace spillway::trainer {

View Walk::Take(ScratchLayout& layout, int64_t rows, int64_t columns, DType rounded) const {
  const DType stored = compute_.StoredAs(rounded);
  const auto bytes =
      static_cast<int64_t>(static_cast<uint64_t>(rows * columns) * ElementBytes(stored));
  return {.data = layout.Take<std::byte>(bytes),
          .stored = stored,
          .rounded = rounded,
          .rows = rows,
          .columns = columns,
          .stride = columns};
}

// Takes room for the most tokens that pass together, and returns its first rows.
View Walk::TakeRows(ScratchLayout& layout, int64_t rows, int64_t columns, DType rounded) const {
  return Take(layout, options_.micro_batch * options_.sequence, columns, rounded).Rows(0, rows);
}

uint64_t Walk::LayOut(std::byte* base) {
  const int64_t tokens = options_.micro_batch * options_.sequence;
  ScratchLayout layout(base);
  base_ = base;
  ropes_.clear();
  for (const std::vector<float>& frequencies : model_.ropes) {
    const auto columns = static_cast<int64_t>(frequencies.size());
    const View cosines = Take(layout, options_.sequence, columns, DType::kF32);
    ropes_.emplace_back(cosines, Take(layout, options_.sequence, columns, DType::kF32));
  }

  // The sizes of the largest norm, and of all other vectors.
  int64_t widest = 0, most_rows = 0;
  uint64_t work_bytes = 0;
  bool has_means = false, has_biases = false;
  const auto count_norm = [&](const Norm& norm, int64_t rows) {
    widest = std::max(widest, norm.width);
    most_rows = std::max(most_rows, rows);
    work_bytes = std::max(work_bytes, compute_.NormWorkBytes(norm.kind, rows, norm.width));
    has_means |= norm.kind == NormKind::kLayer;
  };
  const auto count_bias = [&](const Linear& linear) {
    if (linear.bias == kNone) return;
    widest = std::max(widest, linear.outputs);
    has_biases = true;
  };
  size_t most_sublayers = 1;
  for (const Block& block : model_.blocks) {
    most_sublayers = std::max(most_sublayers, block.sublayers.size());
    for (const Sublayer& sublayer : block.sublayers) {
      count_norm(sublayer.norm, tokens);
      ForEachLinear(sublayer, count_bias);
      const auto* attention = std::get_if<Attention>(&sublayer.branch);
      if (attention == nullptr) continue;
      if (attention->query_norm) count_norm(*attention->query_norm, tokens * attention->heads);
      if (attention->key_norm) count_norm(*attention->key_norm, tokens * attention->kv_heads);
    }
  }
  count_norm(model_.last, tokens);

  residuals_.clear();
  for (size_t s = 0; s < most_sublayers; ++s)
    residuals_.push_back(Take(layout, tokens, model_.width, residual_));
  vector_ = Take(layout, 1, widest, DType::kF32);
  if (has_means) second_vector_ = Take(layout, 1, widest, DType::kF32);
  sum_ = Take(layout, tokens, WidestSum(), DType::kF32);
  stats_ = Take(layout, has_means ? 2 : 1, most_rows, DType::kF32);
  norm_work_ = layout.Take<std::byte>(static_cast<int64_t>(work_bytes));
  if (options_.training) gradient_ = Take(layout, tokens, model_.width, DType::kF32);

  shared_ = layout.mark();
  for (const Block& block : model_.blocks) {
    layout.Rewind(shared_);
    ScratchOf(block, tokens, layout);
  }
  layout.Rewind(shared_);
  ScratchOfHead(tokens, layout);
  return layout.peak_bytes();
}

// Returns the columns of the widest result that Multiply does not sum in place.
int64_t Walk::WidestSum() const {
  if (compute_.StoredAs(element_) == DType::kF32) return 0;
  int64_t widest = 0;
  for (const Block& block : model_.blocks) {
    for (const Sublayer& sublayer : block.sublayers) {
      ForEachLinear(sublayer, [&](const Linear& linear) {
        const bool has_tiles = WeightSpec(linear.weight).num_tiles() > 1;
        const bool has_outputs = linear.storage == Storage::kOutputsByInputs;
        if (linear.bias != kNone || (has_tiles && !has_outputs))
          widest = std::max(widest, linear.outputs);
        if (has_tiles && has_outputs && options_.training) widest = std::max(widest, linear.inputs);
      });
    }
  }
  return widest;
}

// Returns the columns of the widest operand in scratch.
int64_t Walk::WidestOperand() const {
  int64_t widest = std::max(model_.width, WeightSpec(model_.head.weight).tile_rows);
  for (const Block& block : model_.blocks) {
    for (const Sublayer& sublayer : block.sublayers) {
      ForEachLinear(sublayer, [&](const Linear& linear) {
        widest = std::max({widest, linear.inputs, linear.outputs});
      });
    }
  }
  return widest;
}

Walk::BlockScratch Walk::ScratchOf(const Block& block, int64_t rows) const {
  ScratchLayout layout(base_);
  layout.Rewind(shared_);
  return ScratchOf(block, rows, layout);
}

Walk::BlockScratch Walk::ScratchOf(const Block& block, int64_t rows, ScratchLayout& layout) const {
  const auto take = [&](int64_t columns, DType rounded) {
    return TakeRows(layout, rows, columns, rounded);
  };
  BlockScratch scratch;
  scratch.normed = take(model_.width, product_);
  if (options_.training) scratch.d_normed = take(model_.width, DType::kF32);
  uint64_t work_bytes = 0;
  for (const Sublayer& sublayer : block.sublayers) {
    AttentionScratch& a = scratch.attentions.emplace_back();
    MlpScratch& m = scratch.mlps.emplace_back();
    if (const auto* attention = std::get_if<Attention>(&sublayer.branch)) {
      for (const Linear& linear : attention->inputs) {
        a.inputs.push_back(take(linear.outputs, element_));
        if (options_.training) a.d_inputs.push_back(take(linear.outputs, DType::kF32));
      }
      const auto take_normed = [&](int64_t width, View* normed, View* gradient) {
        *normed = take(width, element_);
        if (options_.training) *gradient = take(width, DType::kF32);
      };
      if (attention->query_norm) take_normed(attention->query_width(), &a.query, &a.d_query);
      if (attention->key_norm) take_normed(attention->key_width(), &a.key, &a.d_key);
      a.attention = take(attention->query_width(), element_);
      if (options_.training) a.d_attention = take(attention->query_width(), DType::kF32);
      work_bytes = std::max(work_bytes, compute_.AttentionWorkBytes(SizesOf(
                                            *attention, options_.micro_batch, options_.sequence)));
    } else {
      const Mlp& mlp = std::get<Mlp>(sublayer.branch);
      if (mlp.gate) m.gate = take(mlp.width(), element_);
      m.up = take(mlp.width(), element_);
      m.hidden = take(mlp.width(), product_);
    }
  }
  scratch.attention_work = layout.Take<std::byte>(static_cast<int64_t>(work_bytes));
  return scratch;
}

std::vector<View> Walk::BlockScratch::SavedInputs(size_t sublayer) const {
  if (!attentions[sublayer].inputs.empty()) return attentions[sublayer].inputs;
  const MlpScratch& mlp = mlps[sublayer];
  if (mlp.gate.columns == 0) return {mlp.up};
  return {mlp.gate, mlp.up};
}

Walk::HeadScratch Walk::ScratchOfHead(int64_t rows) const {
  ScratchLayout layout(base_);
  layout.Rewind(shared_);
  return ScratchOfHead(rows, layout);
}

Walk::HeadScratch Walk::ScratchOfHead(int64_t rows, ScratchLayout& layout) const {
  const int64_t tokens = options_.micro_batch * options_.sequence;
  const auto take = [&](int64_t columns, DType rounded) {
    return TakeRows(layout, rows, columns, rounded);
  };
  const int64_t columns = WeightSpec(model_.head.weight).tile_rows;
  HeadScratch scratch;
  scratch.normed = take(model_.width, product_);
  scratch.logits = take(columns, DType::kF32);
  for (int64_t i = 0; i < (options_.by_layer() ? options_.accumulate : 1); ++i) {
    scratch.states.push_back(
        layout.Take<std::byte>(static_cast<int64_t>(compute_.SoftmaxBytes(tokens))));
  }
  if (options_.training) scratch.d_normed = take(model_.width, DType::kF32);
  return scratch;
}

ScratchNeeds Walk::Needs() const {
  ScratchNeeds needs;
  const int64_t tokens = options_.micro_batch * options_.sequence;
  if (element_ != DType::kF32) needs.largest_operand_elements = tokens * WidestOperand();
  needs.step_tokens = tokens * options_.accumulate;
  needs.most_logits = model_.vocabulary;
  const auto elements_of = [](const TensorSpec& spec) {
    return static_cast<int64_t>(spec.tile_bytes(0) / ElementBytes(spec.dtype));
  };
  for (size_t p = 0; p < parts_.parameters.size(); ++p) {
    const TensorSpec& weight = WeightSpec(p);
    if (weight.dtype != DType::kF32) {
      needs.largest_narrow_tile_elements =
          std::max(needs.largest_narrow_tile_elements, elements_of(weight));
    }
    if (!HasGradient(p)) continue;
    const TensorSpec& gradient = parts_.engine->Spec(parts_.parameters[p].tensors.gradient);
    needs.largest_gradient_elements =
        std::max(needs.largest_gradient_elements, elements_of(gradient));
    needs.num_sums += gradient.num_tiles();
  }
  return needs;
}

}  // namespace spillway::trainer
