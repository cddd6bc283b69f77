// SPDX-License-Identifier: Apache-2.0
//
// Reads a Hugging Face `config.json` of a model type that the table has (model_types.h), strictly.
// A setting that the trainer cannot compute exactly (another architecture, other rope scaling) is
// an error that names the key. Nothing is guessed. Configurations of transformers 4 and 5 are read.
//
// tools/python/spillway_tools/model_config.py has the same checks in the same order, and says the
// same of each fault.

#ifndef SPILLWAY_TOOLS_HF_CONFIG_H_
#define SPILLWAY_TOOLS_HF_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::hf {

// How rope's frequencies are scaled for windows that are longer than the pretraining's.
struct RopeScaling {
  enum class Kind : uint8_t { kDefault, kLinear, kLlama3 };
  Kind kind = Kind::kDefault;
  double factor = 1;  // divides frequencies: all of them, or under kLlama3 the low ones
  // kLlama3: frequencies that turn less than low_frequencies times within original_positions
  // tokens are low, those that turn more than high_frequencies times stay.
  double low_frequencies = 0;
  double high_frequencies = 0;
  int64_t original_positions = 0;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelConfig {
  std::string model_type = "llama";  // a row of the table
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;    // divides num_heads
  int64_t head_dim = 0;        // even if there is rope
  double rms_norm_eps = 1e-6;  // of a LayerNorm, too
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  std::string activation = "silu";  // the table's word for it
  std::vector<int64_t> windows;     // of each layer: the keys that a query sees, 0: all; empty: all
  double dropout = 0;               // the largest of the rates
  std::string dropout_key;          // that gives it; empty if all are 0
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;
  std::vector<int64_t> eos_token_ids;  // may be empty
  bool has_prefix = true;              // the tensors' names have the table's prefix
  std::string json;                    // the file as read, for export

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// InvalidArgument names the key, what it holds and what is supported.
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, const std::string& origin);
// Reads `folder`/config.json, and of its weights, if there are any, whether their names have the
// table's prefix. A tokenizer beside it must give only ids that the model has.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder);

// Whether files of this model type may leave out the prefix that the table gives to names.
bool MayLeavePrefixOut(const ModelConfig& config);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_CONFIG_H_
