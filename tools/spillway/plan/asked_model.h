// SPDX-License-Identifier: Apache-2.0
//
// The model that `spillway plan` and `spillway simulate` are asked about: a published one by name,
// a config.json, dimensions, or safetensors of any kind, whose bytes alone are known.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_ASKED_MODEL_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_ASKED_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/plan/counted_weights.h"
#include "tools/spillway/plan/model_presets.h"

namespace spillway::command {

// What gives a model its shape, if not a name or a file.
struct DimensionFlags {
  std::optional<std::string> type;  // a row of the model types' table
  std::optional<int64_t> layers, hidden, heads, kv_heads, ffn, vocab, positions;

  bool any() const {
    return type || layers || hidden || heads || kv_heads || ffn || vocab || positions;
  }
};

// Adds --model and the flags of dimensions.
void AddModelFlags(CLI::App* app, std::string* model, DimensionFlags* dimensions);

struct AskedModel {
  std::string title;
  const ModelPreset* preset = nullptr;    // null: not a preset
  std::optional<hf::ModelConfig> config;  // none: `counted` has the parameters
  std::optional<CountedWeights> counted;  // of a model without a configuration
  std::string why_counted;                // why there is no configuration
  std::string folder;                     // that `train` could take; empty: none
};

// UsageError: no model is named, or it is unknown, malformed or of a shape that cannot be.
absl::StatusOr<AskedModel> ReadModel(const std::string& model, const DimensionFlags& dimensions);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_ASKED_MODEL_H_
