// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/description.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace spillway::trainer {
namespace {

// Rounds as the reference does: the angles of long positions agree only if the frequencies do.
std::vector<float> RopeFrequencies(double theta, int64_t head_dim) {
  std::vector<float> frequencies;
  for (int64_t j = 0; j < head_dim / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(head_dim);
    frequencies.push_back(1.0f / static_cast<float>(std::pow(theta, exponent)));
  }
  return frequencies;
}

// Lists a model's parameters while its parts are made.
class Describer {
 public:
  explicit Describer(const hf::ModelConfig& config) : config_(config) {}

  Description Make() {
    model_.vocabulary = config_.vocab_size;
    model_.width = config_.hidden_size;
    model_.most_positions = config_.max_position_embeddings;
    model_.ropes.push_back(RopeFrequencies(config_.rope_theta, config_.head_dim));
    model_.tokens =
        Add("model.embed_tokens.weight", {model_.vocabulary, model_.width}, First::kNormal);
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string prefix = absl::StrCat("model.layers.", layer, ".");
      Block& block = model_.blocks.emplace_back();
      block.sublayers.push_back({MakeNorm(prefix + "input_layernorm", model_.width),
                                 MakeAttention(prefix + "self_attn.")});
      block.sublayers.push_back(
          {MakeNorm(prefix + "post_attention_layernorm", model_.width), MakeMlp(prefix + "mlp.")});
    }
    model_.last = MakeNorm("model.norm", model_.width);
    model_.head = {.weight = model_.tokens, .inputs = model_.width, .outputs = model_.vocabulary};
    if (!config_.tie_word_embeddings) {
      model_.head.weight = Add("lm_head.weight", {model_.vocabulary, model_.width}, First::kNormal);
    }
    return std::move(model_);
  }

 private:
  size_t Add(std::string name, std::vector<int64_t> shape, First first) {
    model_.parameters.push_back({std::move(name), std::move(shape), first});
    return model_.parameters.size() - 1;
  }

  Norm MakeNorm(const std::string& name, int64_t width) {
    return {.kind = NormKind::kRms,
            .scale = Add(name + ".weight", {width}, First::kOnes),
            .width = width,
            .epsilon = static_cast<float>(config_.rms_norm_eps)};
  }

  Linear MakeLinear(const std::string& name, int64_t inputs, int64_t outputs) {
    return {.weight = Add(name + ".weight", {outputs, inputs}, First::kNormal),
            .inputs = inputs,
            .outputs = outputs};
  }

  Attention MakeAttention(const std::string& prefix) {
    Attention attention;
    attention.heads = config_.num_heads;
    attention.kv_heads = config_.num_kv_heads;
    attention.head_dim = config_.head_dim;
    attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
    attention.rope = 0;
    attention.inputs = {MakeLinear(prefix + "q_proj", model_.width, attention.query_width()),
                        MakeLinear(prefix + "k_proj", model_.width, attention.key_width()),
                        MakeLinear(prefix + "v_proj", model_.width, attention.key_width())};
    attention.query = {.input = 0, .head_stride = attention.head_dim};
    attention.key = {.input = 1, .head_stride = attention.head_dim};
    attention.value = {.input = 2, .head_stride = attention.head_dim};
    attention.output = MakeLinear(prefix + "o_proj", attention.query_width(), model_.width);
    return attention;
  }

  Mlp MakeMlp(const std::string& prefix) {
    Mlp mlp;
    mlp.gate = MakeLinear(prefix + "gate_proj", model_.width, config_.intermediate_size);
    mlp.up = MakeLinear(prefix + "up_proj", model_.width, config_.intermediate_size);
    mlp.down = MakeLinear(prefix + "down_proj", config_.intermediate_size, model_.width);
    return mlp;
  }

  const hf::ModelConfig& config_;
  Description model_;
};

}  // namespace

int64_t ParameterShape::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Description Describe(const hf::ModelConfig& config) { return Describer(config).Make(); }

}  // namespace spillway::trainer
