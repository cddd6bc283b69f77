// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/description.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/hf/model_types.h"

namespace spillway::trainer {
namespace {

using Row = nlohmann::ordered_json;

// Llama 3's scaling of a frequency: one that turns seldom within the windows of the pretraining is
// divided by the factor, one that turns often stays, and between the two it is interpolated.
float ScaleAsLlama3(const hf::RopeScaling& scaling, float frequency) {
  const auto factor = static_cast<float>(scaling.factor);
  const auto positions = static_cast<double>(scaling.original_positions);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength < static_cast<float>(positions / scaling.high_frequencies)) return frequency;
  if (wavelength > static_cast<float>(positions / scaling.low_frequencies))
    return frequency / factor;
  const float turns = static_cast<float>(positions) / wavelength;
  const float share = (turns - static_cast<float>(scaling.low_frequencies)) /
                      static_cast<float>(scaling.high_frequencies - scaling.low_frequencies);
  return (1.0f - share) * frequency / factor + share * frequency;
}

// Rounds as the reference does: the angles of long positions agree only if the frequencies do.
std::vector<float> RopeFrequencies(const hf::ModelConfig& config) {
  using Kind = hf::RopeScaling::Kind;
  const hf::RopeScaling& scaling = config.rope_scaling;
  std::vector<float> frequencies;
  for (int64_t j = 0; j < config.head_dim / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(config.head_dim);
    float frequency = 1.0f / static_cast<float>(std::pow(config.rope_theta, exponent));
    if (scaling.kind == Kind::kLinear) frequency /= static_cast<float>(scaling.factor);
    if (scaling.kind == Kind::kLlama3) frequency = ScaleAsLlama3(scaling, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

// Makes the parts of a model in the order of the table, and lists their parameters.
class Describer {
 public:
  explicit Describer(const hf::ModelConfig& config)
      : config_(config),
        row_(hf::ModelTypeOf(config.model_type)),
        norm_(row_["norm"] == "layer" ? NormKind::kLayer : NormKind::kRms),
        storage_(row_["storage"] == "inputs_by_outputs" ? Storage::kInputsByOutputs
                                                        : Storage::kOutputsByInputs) {}

  Description Make() {
    const Row& names = row_["names"];
    const std::string prefix = config_.has_prefix ? names["prefix"].get<std::string>() : "";
    const auto name = [&](const char* part) {
      return absl::StrCat(prefix, names[part].get<std::string>());
    };
    model_.vocabulary = config_.vocab_size;
    model_.width = config_.hidden_size;
    model_.most_positions = config_.max_position_embeddings;
    if (row_.contains("rope")) model_.ropes.push_back(RopeFrequencies(config_));
    model_.tokens = AddMatrix(name("tokens"), {model_.vocabulary, model_.width});
    if (names.contains("positions"))
      model_.positions = AddMatrix(name("positions"), {model_.most_positions, model_.width});
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string of_block = absl::StrCat(name("block"), ".", layer, ".");
      Block& block = model_.blocks.emplace_back();
      for (const Row& sublayer : row_["sublayers"])
        block.sublayers.push_back(MakeSublayer(of_block, sublayer, layer));
    }
    model_.last = MakeNorm(name("last"), model_.width);
    model_.head = {.weight = model_.tokens, .inputs = model_.width, .outputs = model_.vocabulary};
    if (!config_.tie_word_embeddings) {
      model_.head.weight =
          Add(HeadName(config_), {model_.vocabulary, model_.width}, First::kNormal);
    }
    return std::move(model_);
  }

 private:
  size_t Add(std::string name, std::vector<int64_t> shape, First first) {
    model_.parameters.push_back({std::move(name), std::move(shape), first});
    return model_.parameters.size() - 1;
  }

  size_t AddMatrix(const std::string& name, std::vector<int64_t> shape) {
    return Add(name + ".weight", std::move(shape), First::kNormal);
  }

  Norm MakeNorm(const std::string& name, int64_t width) {
    Norm norm = {.kind = norm_,
                 .scale = Add(name + ".weight", {width}, First::kOnes),
                 .width = width,
                 .epsilon = static_cast<float>(config_.rms_norm_eps)};
    if (norm_ == NormKind::kLayer) norm.shift = Add(name + ".bias", {width}, First::kZeros);
    return norm;
  }

  Linear MakeLinear(const std::string& prefix, const Row& row, int64_t inputs, int64_t outputs) {
    const std::string name = absl::StrCat(prefix, row["name"].get<std::string>());
    Linear linear = {.inputs = inputs, .outputs = outputs, .storage = storage_};
    linear.weight = storage_ == Storage::kOutputsByInputs ? AddMatrix(name, {outputs, inputs})
                                                          : AddMatrix(name, {inputs, outputs});
    if (row.value("bias", false)) linear.bias = Add(name + ".bias", {outputs}, First::kZeros);
    return linear;
  }

  Sublayer MakeSublayer(const std::string& prefix, const Row& row, int64_t layer) {
    Sublayer sublayer = {
        .norm = MakeNorm(absl::StrCat(prefix, row["norm"].get<std::string>()), model_.width)};
    if (row.contains("attention")) {
      sublayer.branch = MakeAttention(prefix, row["attention"], layer);
    } else {
      sublayer.branch = MakeMlp(prefix, row["mlp"]);
    }
    return sublayer;
  }

  Attention MakeAttention(const std::string& prefix, const Row& row, int64_t layer) {
    Attention attention;
    attention.heads = config_.num_heads;
    attention.kv_heads = config_.num_kv_heads;
    attention.head_dim = config_.head_dim;
    attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
    if (!config_.windows.empty()) attention.window = config_.windows[static_cast<size_t>(layer)];
    if (!model_.ropes.empty()) attention.rope = 0;
    for (const Row& input : row["inputs"]) {
      int64_t outputs = 0;
      for (const Row& part : input["gives"]) {
        Columns& columns = part == "query" ? attention.query
                           : part == "key" ? attention.key
                                           : attention.value;
        columns = {attention.inputs.size(), outputs, attention.head_dim};
        outputs += part == "query" ? attention.query_width() : attention.key_width();
      }
      attention.inputs.push_back(MakeLinear(prefix, input, model_.width, outputs));
    }
    const auto norm = [&](const char* part) -> std::optional<Norm> {
      if (!row.contains(part)) return std::nullopt;
      return MakeNorm(absl::StrCat(prefix, row[part].get<std::string>()), attention.head_dim);
    };
    attention.query_norm = norm("query_norm");
    attention.key_norm = norm("key_norm");
    attention.output = MakeLinear(prefix, row["output"], attention.query_width(), model_.width);
    return attention;
  }

  Mlp MakeMlp(const std::string& prefix, const Row& row) {
    const int64_t width = config_.intermediate_size;
    Mlp mlp;
    mlp.activate = config_.activation == "gelu_tanh" ? Activate::kGeluTanh : Activate::kSilu;
    if (row.contains("gate")) mlp.gate = MakeLinear(prefix, row["gate"], model_.width, width);
    mlp.up = MakeLinear(prefix, row["up"], model_.width, width);
    mlp.down = MakeLinear(prefix, row["down"], width, model_.width);
    return mlp;
  }

  const hf::ModelConfig& config_;
  const Row& row_;
  const NormKind norm_;
  const Storage storage_;
  Description model_;
};

}  // namespace

int64_t ParameterShape::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Description Describe(const hf::ModelConfig& config) { return Describer(config).Make(); }

std::string HeadName(const hf::ModelConfig& config) {
  return hf::ModelTypeOf(config.model_type)["names"]["head"].get<std::string>() + ".weight";
}

}  // namespace spillway::trainer
