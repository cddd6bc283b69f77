// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/asked_model.h"

#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/hf/file.h"
#include "tools/hf/model_types.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostConfigBytes = 1 << 20;
constexpr int64_t kMostDimension = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostLayers = 100'000;  // as hf::ParseModelConfig takes
constexpr int64_t kUsualHead = 128;

std::string PresetNames() {
  std::string names;
  for (const ModelPreset& preset : ModelPresets())
    absl::StrAppend(&names, names.empty() ? "" : ", ", base::View(preset.name));
  return names;
}

std::string TypeNames() {
  std::string names;
  for (const auto& [name, unused] : hf::ModelTypes().items())
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return names;
}

// The hidden size of an MLP where none is given: 4 · hidden, and with a gate, which is a third
// matrix, 8/3 · hidden, so that both have as many parameters (Shazeer, GLU variants, 2020).
int64_t UsualFfn(int64_t hidden, bool has_gate) {
  constexpr int64_t kMultiple = 256;
  if (!has_gate) return 4 * hidden;
  return static_cast<int64_t>(base::RoundUp(static_cast<uint64_t>(hidden) * 8 / 3, kMultiple));
}

absl::StatusOr<hf::ModelConfig> ConfigOfDimensions(const DimensionFlags& given) {
  const std::string type = given.type.value_or("llama");
  if (!hf::ModelTypes().contains(type)) {
    return UsageError(absl::StrCat("--type '", type, "' is no model type that is known; these are ",
                                   TypeNames()));
  }
  if (!given.layers || !given.hidden) {
    return UsageError(
        "dimensions need --layers and --hidden at least; the others have usual values");
  }
  const nlohmann::ordered_json& row = hf::ModelTypeOf(type);
  const nlohmann::ordered_json& keys = row["keys"];
  const int64_t hidden = *given.hidden;
  const int64_t heads =
      given.heads.value_or(hidden % kUsualHead == 0 ? hidden / kUsualHead : int64_t{1});
  nlohmann::ordered_json json = {{"model_type", type}, {"architectures", {row["architecture"]}}};
  const nlohmann::ordered_json& activation = row["activation"];
  json[activation["key"].get<std::string>()] = activation["kinds"].begin().key();
  const auto set = [&](const char* size, const nlohmann::ordered_json& value) {
    if (keys.contains(size)) json[keys[size].get<std::string>()] = value;
  };
  set("layers", *given.layers);
  set("width", hidden);
  set("heads", heads);
  set("kv_heads", given.kv_heads.value_or(heads));
  set("mlp_width", given.ffn.value_or(UsualFfn(hidden, keys.contains("kv_heads"))));
  set("vocabulary", given.vocab.value_or(32000));
  set("positions", given.positions.value_or(4096));
  if (hidden % heads == 0) set("head_dim", hidden / heads);
  set("epsilon", 1e-5);
  if (row.contains("window")) json[row["window"]["key"].get<std::string>()] = nullptr;
  if (given.kv_heads && !keys.contains("kv_heads") && *given.kv_heads != heads) {
    return UsageError(
        absl::StrCat("--kv-heads: each head of a ", type, " model has its own keys; leave it out"));
  }
  const auto config = hf::ParseModelConfig(json.dump(), "the dimensions");
  if (!config.ok()) return UsageError(std::string(config.status().message()));
  return config;
}

// Reads a folder, a config.json or a safetensors file.
absl::StatusOr<AskedModel> ReadPath(const std::string& path) {
  AskedModel model;
  model.title = path;
  std::error_code ignored;
  absl::StatusOr<hf::ModelConfig> config = absl::NotFoundError("it has no config.json");
  if (!fs::is_directory(path, ignored)) {
    if (!HasSafetensors(path)) {
      SPILLWAY_ASSIGN_OR_RETURN(const std::string json, hf::ReadTextFile(path, kMostConfigBytes));
      config = hf::ParseModelConfig(json, path);
    }
  } else if (fs::exists(fs::path(path) / "config.json", ignored)) {
    config = hf::ReadModelConfig(path);
    model.folder = path;
  }
  if (config.ok()) {
    model.config = *std::move(config);
    return model;
  }
  if (!HasSafetensors(path)) return config.status();
  model.why_counted = std::string(config.status().message());
  SPILLWAY_ASSIGN_OR_RETURN(model.counted, CountWeights(path));
  return model;
}

}  // namespace

void AddModelFlags(CLI::App* app, std::string* model, DimensionFlags* dimensions) {
  AddText(app, "--model", model,
          "A preset (1.1B, 7B, 13B, 70B, GPT-3, BLOOM, MT-NLG, PaLM, 1T), a config.json, a folder "
          "that has one, or safetensors of any kind, whose bytes are counted");
  const auto add = [app](const char* name, std::optional<int64_t>* value, int64_t most,
                         const char* help) {
    AddParsed(
        app, name, value, [most](const std::string& text) { return ParseInteger(text, 1, most); },
        help)
        .Type("N");
  };
  add("--layers", &dimensions->layers, kMostLayers, "In place of --model: how many layers");
  add("--hidden", &dimensions->hidden, kMostDimension, "Width of the residual");
  add("--heads", &dimensions->heads, kMostDimension, "Of queries (default: of 128 values each)");
  add("--kv-heads", &dimensions->kv_heads, kMostDimension,
      "Of keys and values (default: as many as of queries)");
  add("--ffn", &dimensions->ffn, kMostDimension,
      "Width of the MLP (default: 4 times --hidden; with a gate 8/3 of it)");
  add("--vocab", &dimensions->vocab, kMostDimension, "Tokens of the vocabulary (default: 32000)");
  add("--positions", &dimensions->positions, kMostDimension, "Longest window (default: 4096)");
  AddParsed(
      app, "--type", &dimensions->type,
      [](const std::string& text) -> absl::StatusOr<std::string> { return text; },
      "Model type that the dimensions are of: gpt2, llama, mistral, qwen2, qwen3 (default: llama)")
      .Type("TYPE");
}

absl::StatusOr<AskedModel> ReadModel(const std::string& name, const DimensionFlags& dimensions) {
  if (dimensions.any()) {
    if (!name.empty())
      return UsageError("--model has its own dimensions; give it, or --layers, --hidden, ...");
    AskedModel model;
    SPILLWAY_ASSIGN_OR_RETURN(model.config, ConfigOfDimensions(dimensions));
    model.title = absl::StrFormat("%s of %d layers, hidden size %d", model.config->model_type,
                                  model.config->num_layers, model.config->hidden_size);
    return model;
  }
  if (name.empty()) {
    return UsageError(
        absl::StrCat("--model is needed: a preset (", PresetNames(),
                     "), a config.json, or a folder; or dimensions, as --layers 32 --hidden 4096"));
  }
  if (const ModelPreset* const preset = FindModelPreset(name)) {
    AskedModel model{.title = std::string(preset->title), .preset = preset};
    SPILLWAY_ASSIGN_OR_RETURN(model.config, ConfigOf(*preset));
    return model;
  }
  std::error_code ignored;
  if (!fs::exists(name, ignored)) {
    return UsageError(
        absl::StrCat("--model '", name,
                     "' is neither a file, nor a folder, nor one of the presets: ", PresetNames()));
  }
  absl::StatusOr<AskedModel> model = ReadPath(name);
  if (!model.ok()) return UsageError(absl::StrCat("--model: ", model.status().message()));
  return model;
}

}  // namespace spillway::command
