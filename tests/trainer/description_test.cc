// SPDX-License-Identifier: Apache-2.0
//
// Tests the descriptions of published configurations against what is known of those models, and of
// a model of each type against the table's words.

#include "tools/trainer/description.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <numbers>
#include <string>
#include <variant>

#include "nlohmann/json.hpp"
#include "tools/hf/config.h"

namespace spillway::trainer {
namespace {

// Returns the configuration of SmolLM2-135M or, by its model type, another published one.
nlohmann::json Published(const std::string& model_type) {
  std::ifstream file(SPILLWAY_CONFIG_CASES);
  const auto cases = nlohmann::json::parse(file);
  return model_type == "llama" ? cases["good"] : cases["others"][model_type];
}

hf::ModelConfig Config(const nlohmann::json& json) {
  return *hf::ParseModelConfig(json.dump(), "config.json");
}

const Attention& AttentionOf(const Description& model, size_t block) {
  return std::get<Attention>(model.blocks[block].sublayers[0].branch);
}

const Mlp& MlpOf(const Description& model, size_t block) {
  return std::get<Mlp>(model.blocks[block].sublayers[1].branch);
}

TEST(Description, HasThePublishedNumberOfParameters) {
  const std::map<std::string, int64_t> published = {{"llama", 134'515'008},
                                                    {"gpt2", 124'439'808},
                                                    {"mistral", 7'241'732'096},
                                                    {"qwen2", 494'032'768},
                                                    {"qwen3", 596'049'920}};
  for (const auto& [model_type, expected] : published) {
    int64_t elements = 0;
    for (const ParameterShape& parameter : Describe(Config(Published(model_type))).parameters)
      elements += parameter.elements();
    EXPECT_EQ(elements, expected) << model_type;
  }
}

TEST(Description, FirstValuesAreOnesForNormsAndZerosForBiases) {
  for (const char* model_type : {"llama", "gpt2", "mistral", "qwen2", "qwen3"}) {
    for (const ParameterShape& parameter : Describe(Config(Published(model_type))).parameters) {
      const First expected = parameter.shape.size() == 2         ? First::kNormal
                             : parameter.name.ends_with(".bias") ? First::kZeros
                                                                 : First::kOnes;
      EXPECT_EQ(parameter.first, expected) << parameter.name;
    }
  }
}

TEST(Description, Gpt2HasOneInputOfThreePartsStoredByInputs) {
  nlohmann::json json = Published("gpt2");
  const Description model = Describe(Config(json));
  EXPECT_TRUE(model.is_tied());
  EXPECT_EQ(model.parameters[model.positions].name, "transformer.wpe.weight");
  EXPECT_TRUE(model.ropes.empty());
  const Attention& attention = AttentionOf(model, 3);
  ASSERT_EQ(attention.inputs.size(), 1U);
  EXPECT_EQ(attention.inputs[0].storage, Storage::kInputsByOutputs);
  EXPECT_EQ(attention.inputs[0].outputs, 3 * 768);
  EXPECT_EQ(model.parameters[attention.inputs[0].weight].shape,
            (std::vector<int64_t>{768, 3 * 768}));
  EXPECT_EQ(model.parameters[attention.inputs[0].bias].name, "transformer.h.3.attn.c_attn.bias");
  EXPECT_EQ(attention.query.first, 0);
  EXPECT_EQ(attention.key.first, 768);
  EXPECT_EQ(attention.value.first, 2 * 768);
  EXPECT_EQ(attention.rope, kNone);
  EXPECT_EQ(attention.scale, 0.125F);
  EXPECT_FALSE(MlpOf(model, 3).gate.has_value());
  EXPECT_EQ(MlpOf(model, 3).width(), 4 * 768);
  EXPECT_EQ(MlpOf(model, 3).activate, Activate::kGeluTanh);
  EXPECT_EQ(model.last.kind, NormKind::kLayer);
  EXPECT_EQ(model.last.epsilon, 1e-5F);
  json["tie_word_embeddings"] = false;
  hf::ModelConfig untied = Config(json);
  untied.has_prefix = false;
  const Description other = Describe(untied);
  EXPECT_EQ(other.parameters[other.tokens].name, "wte.weight");
  EXPECT_EQ(other.parameters[other.head.weight].name, "lm_head.weight");
  EXPECT_EQ(other.head.storage, Storage::kOutputsByInputs);
}

TEST(Description, WindowsAreThoseOfTheLayers) {
  nlohmann::json mistral = Published("mistral");
  EXPECT_EQ(AttentionOf(Describe(Config(mistral)), 31).window, 4096);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(AttentionOf(Describe(Config(mistral)), 31).window, 0);
  nlohmann::json qwen = Published("qwen2");
  EXPECT_EQ(AttentionOf(Describe(Config(qwen)), 23).window, 0);
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 20;
  EXPECT_EQ(AttentionOf(Describe(Config(qwen)), 19).window, 0);
  EXPECT_EQ(AttentionOf(Describe(Config(qwen)), 20).window, 32768);
  std::vector<std::string> types(24, "full_attention");
  types[2] = "sliding_attention";
  qwen["layer_types"] = types;
  EXPECT_EQ(AttentionOf(Describe(Config(qwen)), 2).window, 32768);
  EXPECT_EQ(AttentionOf(Describe(Config(qwen)), 20).window, 0);
}

TEST(Description, QwensHaveBiasesOrNormsOfHeads) {
  const Description qwen2 = Describe(Config(Published("qwen2")));
  for (const Linear& input : AttentionOf(qwen2, 0).inputs) EXPECT_NE(input.bias, kNone);
  EXPECT_EQ(AttentionOf(qwen2, 0).output.bias, kNone);
  const Description qwen3 = Describe(Config(Published("qwen3")));
  const Attention& attention = AttentionOf(qwen3, 1);
  EXPECT_EQ(attention.inputs[0].bias, kNone);
  ASSERT_TRUE(attention.query_norm && attention.key_norm);
  EXPECT_EQ(attention.query_norm->width, 128);
  EXPECT_EQ(qwen3.parameters[attention.key_norm->scale].name,
            "model.layers.1.self_attn.k_norm.weight");
}

TEST(Description, RopesFrequenciesAreScaled) {
  nlohmann::json json = Published("llama");
  const std::vector<float> plain = Describe(Config(json)).ropes[0];
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  const std::vector<float> linear = Describe(Config(json)).ropes[0];
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1000}};
  const std::vector<float> llama3 = Describe(Config(json)).ropes[0];
  ASSERT_EQ(plain.size(), 32U);
  int between = 0;
  for (size_t j = 0; j < plain.size(); ++j) {
    const double frequency = std::pow(100000.0, -2.0 * static_cast<double>(j) / 64);
    EXPECT_NEAR(plain[j], frequency, 1e-6 * frequency);
    EXPECT_NEAR(linear[j], frequency / 4, 1e-6 * frequency);
    // How often the pair turns within the windows of the pretraining.
    const double turns = 1000 * frequency / (2 * std::numbers::pi);
    const double share = turns < 1 ? 0 : turns > 4 ? 1 : (turns - 1) / 3;
    between += share > 0 && share < 1 ? 1 : 0;
    EXPECT_NEAR(llama3[j], frequency * (share + (1 - share) / 8), 1e-5 * frequency) << turns;
  }
  EXPECT_GT(between, 2);
}

}  // namespace
}  // namespace spillway::trainer
