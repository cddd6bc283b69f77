// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/block.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/kernels/elementwise.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

constexpr int64_t kSwigluGrain = 1024;  // elements
constexpr int64_t kAddGrain = 4096;     // elements

AttentionShape AttentionShapeOf(const hf::ModelConfig& config, const BatchShape& batch) {
  return {.windows = batch.windows,
          .length = batch.length,
          .heads = config.num_heads,
          .kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim};
}

}  // namespace

void BlockScratch::Bind(ScratchLayout& layout, const ModelContext& context) {
  const hf::ModelConfig& config = context.config;
  const BatchShape batch = {context.options.micro_batch, context.options.sequence};
  const AttentionShape shape = AttentionShapeOf(config, batch);
  const int64_t tokens = batch.tokens();
  normed = layout.Take<float>(tokens * config.hidden_size);
  query = layout.Take<float>(tokens * shape.query_width());
  key = layout.Take<float>(tokens * shape.key_width());
  value = layout.Take<float>(tokens * shape.key_width());
  attention = layout.Take<float>(tokens * shape.query_width());
  gate = layout.Take<float>(tokens * config.intermediate_size);
  up = layout.Take<float>(tokens * config.intermediate_size);
  hidden = layout.Take<float>(tokens * config.intermediate_size);
  work = layout.Take<float>(AttentionScratchFloats(shape, context.pool->num_threads()));
  if (!context.options.training) return;
  d_normed = layout.Take<float>(tokens * config.hidden_size);
  d_attention = layout.Take<float>(tokens * shape.query_width());
  d_query = layout.Take<float>(tokens * shape.query_width());
  d_key = layout.Take<float>(tokens * shape.key_width());
  d_value = layout.Take<float>(tokens * shape.key_width());
}

Block::Block(ModelContext* context, const BlockScratch* scratch, const NormScratch* norm_scratch,
             const RopeTables& rope, int64_t layer)
    : context_(context),
      scratch_(scratch),
      rope_(rope),
      layer_(layer),
      input_norm_(context, norm_scratch, LayerParameterIndices(layer).input_norm),
      middle_norm_(context, norm_scratch, LayerParameterIndices(layer).middle_norm),
      query_(context, LayerParameterIndices(layer).query),
      key_(context, LayerParameterIndices(layer).key),
      value_(context, LayerParameterIndices(layer).value),
      output_(context, LayerParameterIndices(layer).output),
      gate_(context, LayerParameterIndices(layer).gate),
      up_(context, LayerParameterIndices(layer).up),
      down_(context, LayerParameterIndices(layer).down) {}

AttentionShape Block::Shape(const BatchShape& batch) const {
  return AttentionShapeOf(context_->config, batch);
}

// Computes query, key, value, attention and residual.middle from residual.x.
absl::Status Block::AttentionHalf(const BatchShape& batch, const Residual& residual) const {
  const AttentionShape shape = Shape(batch);
  const BlockScratch& s = *scratch_;
  const int64_t tokens = batch.tokens();
  SPILLWAY_RETURN_IF_ERROR(input_norm_.Forward(residual.x, tokens, s.normed));
  SPILLWAY_RETURN_IF_ERROR(query_.Forward(s.normed, tokens, Into::kOverwrite, s.query));
  SPILLWAY_RETURN_IF_ERROR(key_.Forward(s.normed, tokens, Into::kOverwrite, s.key));
  SPILLWAY_RETURN_IF_ERROR(value_.Forward(s.normed, tokens, Into::kOverwrite, s.value));
  context_->RoundProduct(s.query, tokens * shape.query_width());
  context_->RoundProduct(s.key, tokens * shape.key_width());
  context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
    RopeForward(rope_, batch.length, shape.heads, shape.head_dim, begin, end, s.query);
    RopeForward(rope_, batch.length, shape.kv_heads, shape.head_dim, begin, end, s.key);
  });
  context_->RoundActivations(s.query, tokens * shape.query_width());
  context_->RoundActivations(s.key, tokens * shape.key_width());
  context_->RoundActivations(s.value, tokens * shape.key_width());
  AttentionForward(context_->pool, shape, s.query, s.key, s.value, s.work, s.attention);
  context_->RoundActivations(s.attention, tokens * shape.query_width());

  const int64_t elements = tokens * context_->config.hidden_size;
  std::memcpy(residual.middle, residual.x, static_cast<size_t>(elements) * sizeof(float));
  return AddProduct(output_, s.attention, tokens, residual.middle);
}

// Computes residual += x·Wᵀ. May overwrite scratch_->normed.
absl::Status Block::AddProduct(const TiledLinear& linear, const float* x, int64_t tokens,
                               float* residual) const {
  const int64_t elements = tokens * context_->config.hidden_size;
  if (!context_->rounds_products()) {
    SPILLWAY_RETURN_IF_ERROR(linear.Forward(x, tokens, Into::kAdd, residual));
  } else {
    float* const product = scratch_->normed;
    SPILLWAY_RETURN_IF_ERROR(linear.Forward(x, tokens, Into::kOverwrite, product));
    context_->RoundProduct(product, elements);
    context_->pool->ParallelRanges(elements, kAddGrain, [&](int64_t begin, int64_t end) {
      AddToFloats(product + begin, end - begin, residual + begin);
    });
  }
  context_->RoundResidual(residual, elements);
  return absl::OkStatus();
}

// Computes normed, gate and up from middle.
absl::Status Block::GateAndUp(const BatchShape& batch, const float* middle) const {
  const int64_t tokens = batch.tokens();
  SPILLWAY_RETURN_IF_ERROR(middle_norm_.Forward(middle, tokens, scratch_->normed));
  SPILLWAY_RETURN_IF_ERROR(
      gate_.Forward(scratch_->normed, tokens, Into::kOverwrite, scratch_->gate));
  SPILLWAY_RETURN_IF_ERROR(up_.Forward(scratch_->normed, tokens, Into::kOverwrite, scratch_->up));
  context_->RoundActivations(scratch_->gate, tokens * context_->config.intermediate_size);
  context_->RoundActivations(scratch_->up, tokens * context_->config.intermediate_size);
  return absl::OkStatus();
}

absl::Status Block::Forward(const BatchShape& batch, bool save, Residual& residual) const {
  const int64_t tokens = batch.tokens();
  const BlockScratch& s = *scratch_;
  SPILLWAY_RETURN_IF_ERROR(AttentionHalf(batch, residual));
  SPILLWAY_RETURN_IF_ERROR(GateAndUp(batch, residual.middle));
  if (save && !context_->options.checkpoint_activations) {
    SPILLWAY_RETURN_IF_ERROR(SaveForBackward(batch, residual.middle));
  }
  context_->pool->ParallelRanges(
      tokens * context_->config.intermediate_size, kSwigluGrain, [&](int64_t begin, int64_t end) {
        SwigluForward(s.gate + begin, s.up + begin, end - begin, s.hidden + begin);
      });
  context_->RoundProduct(s.hidden, tokens * context_->config.intermediate_size);
  SPILLWAY_RETURN_IF_ERROR(AddProduct(down_, s.hidden, tokens, residual.middle));
  std::swap(residual.x, residual.middle);
  return absl::OkStatus();
}

absl::Status Block::SaveForBackward(const BatchShape& batch, const float* middle) const {
  Activations& saved = *context_->activations;
  const BlockScratch& s = *scratch_;
  SPILLWAY_RETURN_IF_ERROR(saved.Save(batch.micro_batch, layer_, Activation::kQuery, s.query));
  SPILLWAY_RETURN_IF_ERROR(saved.Save(batch.micro_batch, layer_, Activation::kKey, s.key));
  SPILLWAY_RETURN_IF_ERROR(saved.Save(batch.micro_batch, layer_, Activation::kValue, s.value));
  SPILLWAY_RETURN_IF_ERROR(
      saved.Save(batch.micro_batch, layer_, Activation::kAttention, s.attention));
  SPILLWAY_RETURN_IF_ERROR(saved.Save(batch.micro_batch, layer_, Activation::kMiddle, middle));
  SPILLWAY_RETURN_IF_ERROR(saved.Save(batch.micro_batch, layer_, Activation::kGate, s.gate));
  return saved.Save(batch.micro_batch, layer_, Activation::kUp, s.up);
}

// Loads or recomputes everything that Forward had before SwiGLU.
absl::Status Block::Restore(const BatchShape& batch, const Residual& residual) const {
  Activations& saved = *context_->activations;
  const BlockScratch& s = *scratch_;
  const auto load = [&](Activation kind, float* values) {
    return saved.Load(batch.micro_batch, layer_, kind, After::kForget, values);
  };
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kInput, residual.x));
  if (context_->options.checkpoint_activations) {
    SPILLWAY_RETURN_IF_ERROR(AttentionHalf(batch, residual));
    return GateAndUp(batch, residual.middle);
  }
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kQuery, s.query));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kKey, s.key));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kValue, s.value));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kAttention, s.attention));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kMiddle, residual.middle));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kGate, s.gate));
  SPILLWAY_RETURN_IF_ERROR(load(Activation::kUp, s.up));
  return middle_norm_.Forward(residual.middle, batch.tokens(), s.normed);
}

absl::Status Block::Backward(const BatchShape& batch, const Residual& residual,
                             float* gradient) const {
  SPILLWAY_RETURN_IF_ERROR(Restore(batch, residual));
  SPILLWAY_RETURN_IF_ERROR(FeedForwardBackward(batch, residual.middle, gradient));
  return AttentionHalfBackward(batch, residual.x, gradient);
}

// REQUIRES: scratch_->normed is the normed middle. The residual passes the gradient on unchanged,
// and the feed-forward branch adds to it.
absl::Status Block::FeedForwardBackward(const BatchShape& batch, const float* middle,
                                        float* gradient) const {
  const int64_t tokens = batch.tokens();
  const BlockScratch& s = *scratch_;
  SPILLWAY_RETURN_IF_ERROR(down_.BackwardInput(gradient, tokens, Into::kOverwrite, s.hidden));
  context_->pool->ParallelRanges(
      tokens * context_->config.intermediate_size, kSwigluGrain, [&](int64_t begin, int64_t end) {
        SwigluBackward(end - begin, s.gate + begin, s.up + begin, s.hidden + begin);
      });
  context_->RoundProduct(s.hidden, tokens * context_->config.intermediate_size);
  SPILLWAY_RETURN_IF_ERROR(down_.BackwardWeight(gradient, s.hidden, tokens));
  SPILLWAY_RETURN_IF_ERROR(up_.BackwardInput(s.up, tokens, Into::kOverwrite, s.d_normed));
  SPILLWAY_RETURN_IF_ERROR(up_.BackwardWeight(s.up, s.normed, tokens));
  SPILLWAY_RETURN_IF_ERROR(gate_.BackwardInput(s.gate, tokens, Into::kAdd, s.d_normed));
  SPILLWAY_RETURN_IF_ERROR(gate_.BackwardWeight(s.gate, s.normed, tokens));
  return middle_norm_.Backward(s.d_normed, middle, tokens, gradient);
}

absl::Status Block::AttentionHalfBackward(const BatchShape& batch, const float* x,
                                          float* gradient) const {
  const AttentionShape shape = Shape(batch);
  const int64_t tokens = batch.tokens();
  const BlockScratch& s = *scratch_;
  SPILLWAY_RETURN_IF_ERROR(
      output_.BackwardInput(gradient, tokens, Into::kOverwrite, s.d_attention));
  SPILLWAY_RETURN_IF_ERROR(output_.BackwardWeight(gradient, s.attention, tokens));
  AttentionBackward(
      context_->pool, shape,
      {.q = s.query, .k = s.key, .v = s.value, .out = s.attention, .out_gradient = s.d_attention},
      s.work, s.d_query, s.d_key, s.d_value);
  context_->pool->ParallelRanges(tokens, 1, [&](int64_t begin, int64_t end) {
    RopeBackward(rope_, batch.length, shape.heads, shape.head_dim, begin, end, s.d_query);
    RopeBackward(rope_, batch.length, shape.kv_heads, shape.head_dim, begin, end, s.d_key);
  });
  SPILLWAY_RETURN_IF_ERROR(input_norm_.Forward(x, tokens, s.normed));
  SPILLWAY_RETURN_IF_ERROR(value_.BackwardInput(s.d_value, tokens, Into::kOverwrite, s.d_normed));
  SPILLWAY_RETURN_IF_ERROR(value_.BackwardWeight(s.d_value, s.normed, tokens));
  SPILLWAY_RETURN_IF_ERROR(key_.BackwardInput(s.d_key, tokens, Into::kAdd, s.d_normed));
  SPILLWAY_RETURN_IF_ERROR(key_.BackwardWeight(s.d_key, s.normed, tokens));
  SPILLWAY_RETURN_IF_ERROR(query_.BackwardInput(s.d_query, tokens, Into::kAdd, s.d_normed));
  SPILLWAY_RETURN_IF_ERROR(query_.BackwardWeight(s.d_query, s.normed, tokens));
  return input_norm_.Backward(s.d_normed, x, tokens, gradient);
}

}  // namespace spillway::trainer
