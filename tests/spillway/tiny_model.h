// SPDX-License-Identifier: Apache-2.0
//
// Writes the config of a model that is small enough to train in milliseconds, and generated tokens
// to train it on. Nothing is downloaded.

#ifndef SPILLWAY_TESTS_SPILLWAY_TINY_MODEL_H_
#define SPILLWAY_TESTS_SPILLWAY_TINY_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"
#include "tools/hf/model_types.h"

namespace spillway::test {

inline constexpr int kTinyVocabulary = 64;

inline nlohmann::json TinyConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", kTinyVocabulary},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"eos_token_id", 2}};
}

// The same sizes for another row of the table of model types.
inline nlohmann::json TinyConfigOf(const std::string& type) {
  nlohmann::json config = TinyConfig();
  if (type == "gpt2") {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", kTinyVocabulary},
            {"n_embd", 32},
            {"n_inner", 48},
            {"n_layer", 2},
            {"n_head", 4},
            {"n_positions", 128},
            {"layer_norm_epsilon", 1e-5},
            {"activation_function", "gelu_new"},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0},
            {"tie_word_embeddings", true},
            {"eos_token_id", 2}};
  }
  config["model_type"] = type;
  config["architectures"] = {hf::ModelTypeOf(type).at("architecture")};
  if (type == "mistral") config["sliding_window"] = 5;
  if (type == "qwen3") config["head_dim"] = 8;
  return config;
}

// Writes a model folder with only config.json, which is enough for --init random.
inline void WriteTinyModel(const std::string& folder, const nlohmann::json& config = TinyConfig()) {
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/config.json", config.dump());
}

// Writes a folder of tokens. Most tokens follow from the one before, so that there is something to
// learn.
inline void WriteTinyData(const std::string& folder, size_t num_tokens = 4000, uint64_t seed = 1) {
  std::filesystem::create_directories(folder);
  std::mt19937_64 random(seed);
  for (const char* split : {"train", "valid"}) {
    std::vector<uint16_t> tokens = {1};
    while (tokens.size() < num_tokens) {
      const uint64_t draw = random();
      const uint64_t token = draw % 8 == 0 ? draw / 8 : uint64_t{tokens.back()} * 5 + 3;
      tokens.push_back(static_cast<uint16_t>(token % kTinyVocabulary));
    }
    WriteNpy(folder + "/" + split + ".npy", tokens);
  }
  WriteFile(folder + "/meta.json", R"({"vocab_size":)" + std::to_string(kTinyVocabulary) + "}");
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_TINY_MODEL_H_
