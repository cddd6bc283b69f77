// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/model_presets.h"

#include <array>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "src/base/view.h"

namespace spillway::command {
namespace {

constexpr std::array<ModelPreset, 10> kPresets = {{
    {.name = "1.1B",
     .title = "TinyLlama 1.1B",
     .published_parameters = 1.1e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
       "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
       "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
       "tie_word_embeddings": false})",
     .differs = "",
     .source = "Zhang et al., TinyLlama (2024), table 1"},
    {.name = "3.2B",
     .title = "Llama 3.2 3B",
     .published_parameters = 3.21e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192,
       "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
       "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
       "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
       "low_freq_factor": 1.0, "high_freq_factor": 4.0,
       "original_max_position_embeddings": 8192}, "tie_word_embeddings": true})",
     .differs = "",
     .source = "Llama 3.2 3B's config.json and model card (2024)"},
    {.name = "7B",
     .title = "Llama 2 7B",
     .published_parameters = 6.74e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
       "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
       "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
       "tie_word_embeddings": false})",
     .differs = "",
     .source = "Touvron et al., Llama 2 (2023)"},
    {.name = "13B",
     .title = "Llama 2 13B",
     .published_parameters = 13.0e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824,
       "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
       "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
       "tie_word_embeddings": false})",
     .differs = "",
     .source = "Touvron et al., Llama 2 (2023)"},
    {.name = "70B",
     .title = "Llama 2 70B",
     .published_parameters = 69.0e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672,
       "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
       "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
       "tie_word_embeddings": false})",
     .differs = "",
     .source = "Touvron et al., Llama 2 (2023)"},
    {.name = "GPT-3",
     .title = "GPT-3 175B",
     .published_parameters = 175e9,
     .config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
       "activation_function": "gelu_new", "vocab_size": 50257, "n_embd": 12288, "n_layer": 96,
       "n_head": 96, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
       "tie_word_embeddings": true})",
     .differs = "every second layer of GPT-3 attends to a band of keys",
     .source = "Brown et al., Language models are few-shot learners (2020), table 2.1"},
    {.name = "BLOOM",
     .title = "BLOOM 176B",
     .published_parameters = 176.25e9,
     .config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
       "activation_function": "gelu_new", "vocab_size": 250880, "n_embd": 14336, "n_layer": 70,
       "n_head": 112, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
       "tie_word_embeddings": true})",
     .differs = "BLOOM has biases of the scores (ALiBi) in place of learned positions, and a norm "
                "after its embedding",
     .source = "BigScience, BLOOM (2022), table 3"},
    {.name = "MT-NLG",
     .title = "Megatron-Turing NLG 530B",
     .published_parameters = 530e9,
     .config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
       "activation_function": "gelu_new", "vocab_size": 51200, "n_embd": 20480, "n_layer": 105,
       "n_head": 128, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
       "tie_word_embeddings": true})",
     .differs = "",
     .source = "Smith et al., Megatron-Turing NLG 530B (2022), section 3.1"},
    {.name = "PaLM",
     .title = "PaLM 540B",
     .published_parameters = 540.35e9,
     .config = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
       "hidden_act": "silu", "vocab_size": 256000, "hidden_size": 18432,
       "intermediate_size": 73728, "num_hidden_layers": 118, "num_attention_heads": 48,
       "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 2048,
       "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})",
     .differs = "PaLM's attention and MLP read the same norm (parallel residuals)",
     .source = "Chowdhery et al., PaLM (2022), table 1"},
    {.name = "1T",
     .title = "1T: 128 layers of hidden size 25,600",
     .published_parameters = 1.008e12,
     .config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
       "activation_function": "gelu_new", "vocab_size": 51200, "n_embd": 25600, "n_layer": 128,
       "n_head": 160, "n_positions": 2048, "layer_norm_epsilon": 1e-5,
       "tie_word_embeddings": true})",
     .differs = "",
     .source = "Narayanan et al., Efficient large-scale language model training (2021), table 1"},
}};

}  // namespace

std::span<const ModelPreset> ModelPresets() { return kPresets; }

const ModelPreset* FindModelPreset(std::string_view name) {
  for (const ModelPreset& preset : kPresets)
    if (absl::EqualsIgnoreCase(base::View(preset.name), base::View(name))) return &preset;
  return nullptr;
}

absl::StatusOr<hf::ModelConfig> ConfigOf(const ModelPreset& preset) {
  return hf::ParseModelConfig(std::string(preset.config),
                              absl::StrCat("the preset ", base::View(preset.name)));
}

}  // namespace spillway::command
