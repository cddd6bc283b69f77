// SPDX-License-Identifier: Apache-2.0
//
// Reads a Hugging Face `config.json` of the LLaMA family, strictly. A setting that the trainer
// cannot compute exactly (another architecture, rope scaling, biases) is an error that names the
// key. Nothing is guessed.

#ifndef SPILLWAY_TOOLS_HF_CONFIG_H_
#define SPILLWAY_TOOLS_HF_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::hf {

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even; hidden_size / num_heads if the file does not give it
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;  // `rope_theta`, or the newer `rope_parameters.rope_theta`
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;
  std::vector<int64_t> eos_token_ids;  // may be empty
  std::string json;                    // the file as read, for export

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// InvalidArgument names the key, what it holds and what is supported.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, const std::string& origin);
// Reads `folder`/config.json. A tokenizer beside it must give only ids that the model has.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_CONFIG_H_
