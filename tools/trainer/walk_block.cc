// SPDX-License-Identifier: Apache-2.0
//
// A block: for each of its sublayers x += branch(norm(x)). Forward, the recomputation of a
// checkpointed block and the backward over saved values run the same functions in the same order,
// so that all give the same bits.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "src/base/status_macros.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {
namespace {

// The queries, keys or values among what the inputs give.
Heads HeadsOf(const Columns& columns, int64_t heads, int64_t head_dim,
              std::span<const View> inputs) {
  return {.rows = inputs[columns.input].Columns(columns.first,
                                                (heads - 1) * columns.head_stride + head_dim),
          .heads = heads,
          .head_stride = columns.head_stride};
}

Heads Packed(const View& rows, int64_t heads, int64_t head_dim) {
  return {.rows = rows, .heads = heads, .head_stride = head_dim};
}

// One row for each head of each token. REQUIRES: the heads are packed.
View HeadByHead(const Heads& of, int64_t head_dim) {
  return of.rows.Reshaped(of.rows.rows * of.heads, head_dim);
}

bool NormsHeads(const Attention& attention) {
  return attention.query_norm.has_value() || attention.key_norm.has_value();
}

// The linears that read a sublayer's normed input.
std::vector<Linear> InputsOf(const Sublayer& sublayer) {
  if (const auto* attention = std::get_if<Attention>(&sublayer.branch)) return attention->inputs;
  const Mlp& mlp = std::get<Mlp>(sublayer.branch);
  if (!mlp.gate.has_value()) return {mlp.up};
  return {*mlp.gate, mlp.up};
}

}  // namespace

AttentionSizes Walk::SizesOf(const Attention& attention, int64_t windows, int64_t length) const {
  return {.windows = windows,
          .length = length,
          .heads = attention.heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .window = attention.window,
          .scale = attention.scale};
}

// --- Forward ---

// Makes residuals_[0] the block's output. If `save`, saves what BackwardBlock needs except the
// block's input, which the caller saves.
absl::Status Walk::ForwardBlock(size_t block, const Batch& batch, bool save) {
  const std::vector<Sublayer>& sublayers = model_.blocks[block].sublayers;
  BlockScratch scratch = ScratchOf(model_.blocks[block], batch.rows());
  const bool saves = save && !options_.checkpoint_activations;
  for (size_t s = 0; s < sublayers.size(); ++s) {
    const bool is_last = s + 1 == sublayers.size();
    SPILLWAY_RETURN_IF_ERROR(ComputeBranch(sublayers[s], s, batch, scratch));
    const SavedSublayer* saved =
        saves ? &parts_.saved->Of(batch.index).blocks[block].sublayers[s] : nullptr;
    if (saves) {
      const std::vector<View> inputs = scratch.SavedInputs(s);
      for (size_t i = 0; i < inputs.size(); ++i)
        SPILLWAY_RETURN_IF_ERROR(Save(saved->inputs[i], inputs[i]));
      if (saved->attention != TensorId())
        SPILLWAY_RETURN_IF_ERROR(Save(saved->attention, scratch.attentions[s].attention));
    }
    const View x = ResidualOf(s, batch);
    if (is_last) {
      SPILLWAY_RETURN_IF_ERROR(AddBranch(sublayers[s], s, scratch, x));
      std::swap(residuals_[0], residuals_[s]);
      continue;
    }
    const View next = ResidualOf(s + 1, batch);
    compute_.Copy(x, next);
    SPILLWAY_RETURN_IF_ERROR(AddBranch(sublayers[s], s, scratch, next));
    if (saves) SPILLWAY_RETURN_IF_ERROR(Save(saved->residual, next));
  }
  return absl::OkStatus();
}

// Norms the input of a sublayer, unless that was the last thing normed.
absl::Status Walk::NormInput(const Sublayer& sublayer, size_t index, const Batch& batch,
                             BlockScratch& scratch) {
  if (scratch.normed_of == index) return absl::OkStatus();
  scratch.normed_of = index;
  return ForwardNorm(sublayer.norm, ResidualOf(index, batch), scratch.normed);
}

// Computes a sublayer up to the attention, or up to the MLP's gate and up.
absl::Status Walk::ComputeBranch(const Sublayer& sublayer, size_t index, const Batch& batch,
                                 BlockScratch& scratch) {
  SPILLWAY_RETURN_IF_ERROR(NormInput(sublayer, index, batch, scratch));
  if (const auto* attention = std::get_if<Attention>(&sublayer.branch)) {
    const AttentionScratch& a = scratch.attentions[index];
    SPILLWAY_RETURN_IF_ERROR(Project(*attention, a, scratch.normed));
    SPILLWAY_RETURN_IF_ERROR(NormHeads(*attention, a, scratch));
    Turn(*attention, batch, a);
    compute_.Attention(ArgumentsOf(*attention, batch, a, scratch.attention_work));
    return absl::OkStatus();
  }
  const Mlp& mlp = std::get<Mlp>(sublayer.branch);
  const MlpScratch& m = scratch.mlps[index];
  if (mlp.gate.has_value()) {
    SPILLWAY_RETURN_IF_ERROR(
        Multiply(*mlp.gate, Passes::kForward, scratch.normed, Into::kOverwrite, m.gate));
  }
  return Multiply(mlp.up, Passes::kForward, scratch.normed, Into::kOverwrite, m.up);
}

// Computes queries, keys and values. What is rounded again after rope keeps more bits until then,
// except under bf16, where every product is rounded. What is saved before its norm is rounded.
absl::Status Walk::Project(const Attention& attention, const AttentionScratch& scratch,
                           const View& normed) {
  for (size_t i = 0; i < attention.inputs.size(); ++i) {
    const bool is_rounded_later =
        attention.rope != kNone && attention.value.input != i && !NormsHeads(attention);
    const View result = is_rounded_later ? scratch.inputs[i].Rounded(product_) : scratch.inputs[i];
    SPILLWAY_RETURN_IF_ERROR(
        Multiply(attention.inputs[i], Passes::kForward, normed, Into::kOverwrite, result));
  }
  return absl::OkStatus();
}

Heads Walk::QueriesOf(const Attention& attention, const AttentionScratch& scratch) const {
  if (attention.query_norm) return Packed(scratch.query, attention.heads, attention.head_dim);
  return HeadsOf(attention.query, attention.heads, attention.head_dim, scratch.inputs);
}

Heads Walk::KeysOf(const Attention& attention, const AttentionScratch& scratch) const {
  if (attention.key_norm) return Packed(scratch.key, attention.kv_heads, attention.head_dim);
  return HeadsOf(attention.key, attention.kv_heads, attention.head_dim, scratch.inputs);
}

// Norms the heads of queries and keys that have norms.
absl::Status Walk::NormHeads(const Attention& attention, const AttentionScratch& scratch,
                             BlockScratch& block) {
  if (!NormsHeads(attention)) return absl::OkStatus();
  block.normed_of = kNone;  // the norms share stats_
  const auto norm = [&](const Norm& of, const Columns& columns, int64_t heads, const View& to) {
    const Heads from = HeadsOf(columns, heads, attention.head_dim, scratch.inputs);
    const View result = to.Rounded(attention.rope == kNone ? element_ : product_);
    return ForwardNorm(of, HeadByHead(from, attention.head_dim),
                       result.Reshaped(to.rows * heads, attention.head_dim));
  };
  if (attention.query_norm) {
    SPILLWAY_RETURN_IF_ERROR(
        norm(*attention.query_norm, attention.query, attention.heads, scratch.query));
  }
  if (!attention.key_norm) return absl::OkStatus();
  return norm(*attention.key_norm, attention.key, attention.kv_heads, scratch.key);
}

// Applies rope to queries and keys.
void Walk::Turn(const Attention& attention, const Batch& batch, const AttentionScratch& scratch) {
  TurnHeads(attention, batch, QueriesOf(attention, scratch), /*backward=*/false);
  TurnHeads(attention, batch, KeysOf(attention, scratch), /*backward=*/false);
}

void Walk::TurnHeads(const Attention& attention, const Batch& batch, const Heads& heads,
                     bool backward) {
  if (attention.rope == kNone) return;
  const auto& [cosines, sines] = ropes_[attention.rope];
  compute_.Rope({.cosines = cosines,
                 .sines = sines,
                 .length = batch.length,
                 .head_dim = attention.head_dim,
                 .backward = backward,
                 .x = heads});
}

AttentionArguments Walk::ArgumentsOf(const Attention& attention, const Batch& batch,
                                     const AttentionScratch& scratch, std::byte* work) const {
  return {.sizes = SizesOf(attention, batch.windows, batch.length),
          .query = QueriesOf(attention, scratch),
          .key = KeysOf(attention, scratch),
          .value = HeadsOf(attention.value, attention.kv_heads, attention.head_dim, scratch.inputs),
          .out = scratch.attention,
          .work = work};
}

ActivationArguments Walk::ArgumentsOf(const Mlp& mlp, const MlpScratch& scratch) const {
  return {.function = mlp.activate, .gate = scratch.gate, .up = scratch.up, .out = scratch.hidden};
}

// Adds the rest of a computed branch to the residual.
absl::Status Walk::AddBranch(const Sublayer& sublayer, size_t index, BlockScratch& scratch,
                             const View& residual) {
  if (const auto* attention = std::get_if<Attention>(&sublayer.branch))
    return AddProduct(attention->output, scratch.attentions[index].attention, scratch, residual);
  const Mlp& mlp = std::get<Mlp>(sublayer.branch);
  compute_.Activation(ArgumentsOf(mlp, scratch.mlps[index]));
  return AddProduct(mlp.down, scratch.mlps[index].hidden, scratch, residual);
}

// Computes residual += x·Wᵀ + bias. If products are rounded, the product is rounded before it is
// added, and overwrites scratch.normed.
absl::Status Walk::AddProduct(const Linear& linear, const View& x, BlockScratch& scratch,
                              const View& residual) {
  if (product_ == DType::kF32) return Multiply(linear, Passes::kForward, x, Into::kAdd, residual);
  scratch.normed_of = kNone;
  SPILLWAY_RETURN_IF_ERROR(Multiply(linear, Passes::kForward, x, Into::kOverwrite, scratch.normed));
  compute_.Add(scratch.normed, residual);
  return absl::OkStatus();
}

// --- Backward ---

// Loads the input and what ForwardBlock saved. Replaces gradient_, the gradient of the output, with
// the gradient of the input, and adds the weights' gradients to their tensors.
absl::Status Walk::BackwardBlock(size_t block, const Batch& batch) {
  const std::vector<Sublayer>& sublayers = model_.blocks[block].sublayers;
  BlockScratch scratch = ScratchOf(model_.blocks[block], batch.rows());
  SPILLWAY_RETURN_IF_ERROR(Restore(block, batch, scratch));
  for (size_t s = sublayers.size(); s-- > 0;) {
    SPILLWAY_RETURN_IF_ERROR(std::holds_alternative<Attention>(sublayers[s].branch)
                                 ? BackwardAttention(sublayers[s], s, batch, scratch)
                                 : BackwardMlp(sublayers[s], s, batch, scratch));
    // The residual passes the gradient on unchanged, and the branch adds to it.
    SPILLWAY_RETURN_IF_ERROR(BackwardNorm(sublayers[s].norm, scratch.d_normed, ResidualOf(s, batch),
                                          gradient_, batch.index));
  }
  return absl::OkStatus();
}

// Loads or recomputes the inputs of all sublayers and everything that their branches had before the
// last linear.
absl::Status Walk::Restore(size_t block, const Batch& batch, BlockScratch& scratch) {
  const std::vector<Sublayer>& sublayers = model_.blocks[block].sublayers;
  const SavedBlock& saved = parts_.saved->Of(batch.index).blocks[block];
  SPILLWAY_RETURN_IF_ERROR(Load(saved.input, After::kForget, ResidualOf(0, batch)));
  for (size_t s = 0; s < sublayers.size(); ++s) {
    const bool is_last = s + 1 == sublayers.size();
    if (options_.checkpoint_activations) {
      SPILLWAY_RETURN_IF_ERROR(ComputeBranch(sublayers[s], s, batch, scratch));
      if (is_last) break;
      compute_.Copy(ResidualOf(s, batch), ResidualOf(s + 1, batch));
      SPILLWAY_RETURN_IF_ERROR(AddBranch(sublayers[s], s, scratch, ResidualOf(s + 1, batch)));
      continue;
    }
    const SavedSublayer& of = saved.sublayers[s];
    const std::vector<View> inputs = scratch.SavedInputs(s);
    for (size_t i = 0; i < inputs.size(); ++i)
      SPILLWAY_RETURN_IF_ERROR(Load(of.inputs[i], After::kForget, inputs[i]));
    if (of.attention != TensorId()) {
      SPILLWAY_RETURN_IF_ERROR(Load(of.attention, After::kForget, scratch.attentions[s].attention));
      SPILLWAY_RETURN_IF_ERROR(RestoreHeads(std::get<Attention>(sublayers[s].branch), batch,
                                            scratch.attentions[s], scratch));
    }
    if (!is_last)
      SPILLWAY_RETURN_IF_ERROR(Load(of.residual, After::kForget, ResidualOf(s + 1, batch)));
  }
  return absl::OkStatus();
}

// Queries and keys that are normed were saved before their norms, others after rope.
absl::Status Walk::RestoreHeads(const Attention& attention, const Batch& batch,
                                const AttentionScratch& scratch, BlockScratch& block) {
  SPILLWAY_RETURN_IF_ERROR(NormHeads(attention, scratch, block));
  if (attention.query_norm)
    TurnHeads(attention, batch, QueriesOf(attention, scratch), /*backward=*/false);
  if (attention.key_norm)
    TurnHeads(attention, batch, KeysOf(attention, scratch), /*backward=*/false);
  return absl::OkStatus();
}

// Computes the gradient of the normed input, and adds those of the weights.
absl::Status Walk::BackwardMlp(const Sublayer& sublayer, size_t index, const Batch& batch,
                               BlockScratch& scratch) {
  const Mlp& mlp = std::get<Mlp>(sublayer.branch);
  const MlpScratch& m = scratch.mlps[index];
  SPILLWAY_RETURN_IF_ERROR(Multiply(mlp.down, Passes::kBackward, gradient_, Into::kOverwrite,
                                    m.hidden.Rounded(m.hidden.stored)));
  compute_.ActivationGradient(ArgumentsOf(mlp, m));
  SPILLWAY_RETURN_IF_ERROR(
      AddWeightGradient(mlp.down, gradient_, m.hidden, {.micro_batch = batch.index}));
  SPILLWAY_RETURN_IF_ERROR(NormInput(sublayer, index, batch, scratch));
  return BackwardInputs(InputsOf(sublayer), scratch.SavedInputs(index), batch, scratch);
}

absl::Status Walk::BackwardAttention(const Sublayer& sublayer, size_t index, const Batch& batch,
                                     BlockScratch& scratch) {
  const Attention& attention = std::get<Attention>(sublayer.branch);
  const AttentionScratch& a = scratch.attentions[index];
  const int64_t dim = attention.head_dim;
  SPILLWAY_RETURN_IF_ERROR(
      Multiply(attention.output, Passes::kBackward, gradient_, Into::kOverwrite, a.d_attention));
  SPILLWAY_RETURN_IF_ERROR(
      AddWeightGradient(attention.output, gradient_, a.attention, {.micro_batch = batch.index}));
  const Heads d_query = attention.query_norm
                            ? Packed(a.d_query, attention.heads, dim)
                            : HeadsOf(attention.query, attention.heads, dim, a.d_inputs);
  const Heads d_key = attention.key_norm
                          ? Packed(a.d_key, attention.kv_heads, dim)
                          : HeadsOf(attention.key, attention.kv_heads, dim, a.d_inputs);
  compute_.AttentionGradient(
      {.forward = ArgumentsOf(attention, batch, a, scratch.attention_work),
       .out_gradient = a.d_attention,
       .query_gradient = d_query,
       .key_gradient = d_key,
       .value_gradient = HeadsOf(attention.value, attention.kv_heads, dim, a.d_inputs)});
  TurnHeads(attention, batch, d_query, /*backward=*/true);
  TurnHeads(attention, batch, d_key, /*backward=*/true);
  if (attention.query_norm) {
    SPILLWAY_RETURN_IF_ERROR(BackwardHeadNorm(*attention.query_norm, attention.query, d_query, dim,
                                              a, a.query, batch, scratch));
  }
  if (attention.key_norm) {
    SPILLWAY_RETURN_IF_ERROR(
        BackwardHeadNorm(*attention.key_norm, attention.key, d_key, dim, a, a.key, batch, scratch));
  }
  SPILLWAY_RETURN_IF_ERROR(NormInput(sublayer, index, batch, scratch));
  return BackwardInputs(attention.inputs, a.d_inputs, batch, scratch);
}

// From d_heads, the gradient of normed heads, computes that of the heads before their norm.
// `normed` is overwritten: the norm runs again for its statistics.
absl::Status Walk::BackwardHeadNorm(const Norm& norm, const Columns& columns, const Heads& d_heads,
                                    int64_t head_dim, const AttentionScratch& scratch,
                                    const View& normed, const Batch& batch, BlockScratch& block) {
  block.normed_of = kNone;
  const View x = HeadByHead(HeadsOf(columns, d_heads.heads, head_dim, scratch.inputs), head_dim);
  const View dx = HeadByHead(HeadsOf(columns, d_heads.heads, head_dim, scratch.d_inputs), head_dim);
  SPILLWAY_RETURN_IF_ERROR(ForwardNorm(norm, x, normed.Reshaped(x.rows, head_dim)));
  compute_.Zero(dx);
  return BackwardNorm(norm, HeadByHead(d_heads, head_dim), x, dx, batch.index);
}

// Computes d_normed from the gradients of what the linears gave, and adds those of the weights.
// REQUIRES: scratch.normed is the normed input.
absl::Status Walk::BackwardInputs(std::span<const Linear> linears, std::span<const View> gradients,
                                  const Batch& batch, const BlockScratch& scratch) {
  for (size_t i = linears.size(); i-- > 0;) {
    SPILLWAY_RETURN_IF_ERROR(Multiply(linears[i], Passes::kBackward, gradients[i],
                                      i + 1 == linears.size() ? Into::kOverwrite : Into::kAdd,
                                      scratch.d_normed));
    SPILLWAY_RETURN_IF_ERROR(
        AddWeightGradient(linears[i], gradients[i], scratch.normed, {.micro_batch = batch.index}));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
