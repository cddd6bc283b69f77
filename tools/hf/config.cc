// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/hf/file.h"
#include "tools/hf/strict_json.h"
#include "tools/hf/tokenizer_ids.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 100'000;

// Reads the keys of one JSON object. A key with the value null counts as absent, because Hugging
// Face writes defaults in that way.
class ConfigReader {
 public:
  ConfigReader(const json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  // Returns null if the key is absent.
  const json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::Status Error(const char* key, std::string_view expected) const {
    const json* value = Find(key);
    return absl::InvalidArgumentError(absl::StrCat(origin_, ": ", prefix_, key, " is ",
                                                   value == nullptr ? "missing" : Excerpt(*value),
                                                   "; ", std::string(expected)));
  }

  absl::StatusOr<int64_t> Size(const char* key, std::optional<int64_t> fallback = std::nullopt,
                               int64_t max = kMaxSize) const {
    const json* value = Find(key);
    if (value == nullptr && fallback.has_value()) return *fallback;
    if (value == nullptr || !value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
        value->get<uint64_t>() > static_cast<uint64_t>(max)) {
      return Error(key, absl::StrCat("a whole number from 1 to ", max, " is expected"));
    }
    return static_cast<int64_t>(value->get<uint64_t>());
  }

  absl::StatusOr<double> Positive(const char* key, double fallback) const {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() > 0) ||
        !std::isfinite(value->get<double>())) {
      return Error(key, "a positive number is expected");
    }
    return value->get<double>();
  }

  absl::StatusOr<bool> Bool(const char* key, bool fallback) const {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Error(key, "true or false is expected");
    return value->get<bool>();
  }

  // For a feature that is not supported: an error if it is on.
  absl::Status MustBeFalse(const char* key) const {
    SPILLWAY_ASSIGN_OR_RETURN(const bool on, Bool(key, false));
    return on ? Error(key, "only false is supported") : absl::OkStatus();
  }

  // For a feature that is always on: an error if it is off.
  absl::Status MustBeTrue(const char* key) const {
    SPILLWAY_ASSIGN_OR_RETURN(const bool on, Bool(key, true));
    return on ? absl::OkStatus() : Error(key, "only true is supported");
  }

  absl::Status MustBeNumber(const char* key, double only) const {
    const json* value = Find(key);
    if (value == nullptr || (value->is_number() && value->get<double>() == only))
      return absl::OkStatus();
    return Error(key, absl::StrCat("only ", only, " is supported"));
  }

  absl::Status MustBeString(const char* key, const char* only) const {
    const json* value = Find(key);
    if (value == nullptr || (value->is_string() && value->get<std::string>() == only))
      return absl::OkStatus();
    return Error(key, absl::StrCat("only \"", only, "\" is supported"));
  }

 private:
  const json& object_;
  const std::string origin_;
  const std::string prefix_;
};

absl::Status CheckArchitecture(const ConfigReader& config) {
  const json* architectures = config.Find("architectures");
  if (architectures != nullptr && *architectures != json::array({"LlamaForCausalLM"})) {
    return config.Error("architectures", "only [\"LlamaForCausalLM\"] is supported");
  }
  if (config.Find("model_type") == nullptr)
    return config.Error("model_type", "\"llama\" is expected");
  SPILLWAY_RETURN_IF_ERROR(config.MustBeString("model_type", "llama"));
  SPILLWAY_RETURN_IF_ERROR(config.MustBeString("hidden_act", "silu"));
  for (const char* key : {"attention_bias", "mlp_bias", "rope_interleaved"}) {
    SPILLWAY_RETURN_IF_ERROR(config.MustBeFalse(key));
  }
  SPILLWAY_RETURN_IF_ERROR(config.MustBeTrue("is_causal"));
  SPILLWAY_RETURN_IF_ERROR(config.MustBeNumber("attention_dropout", 0));
  SPILLWAY_RETURN_IF_ERROR(config.MustBeNumber("partial_rotary_factor", 1));
  if (config.Find("quantization_config") != nullptr) {
    return config.Error("quantization_config", "weights must be F32, F16 or BF16");
  }
  return absl::OkStatus();
}

// The kind of `rope_scaling` has the key "rope_type", in older files "type". New versions of
// transformers take further keys of rope from it, which must agree with `theta`, the model's.
absl::Status CheckRopeScaling(const ConfigReader& config, const std::string& origin, double theta) {
  const json* scaling = config.Find("rope_scaling");
  if (scaling == nullptr) return absl::OkStatus();
  if (!scaling->is_object()) return config.Error("rope_scaling", "null or an object is expected");
  const ConfigReader reader(*scaling, origin, "rope_scaling.");
  const char* key = reader.Find("rope_type") != nullptr ? "rope_type" : "type";
  if (reader.Find(key) == nullptr)
    return config.Error("rope_scaling", "only \"rope_type\": \"default\" is supported");
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeString("rope_type", "default"));
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeString("type", "default"));
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeNumber("partial_rotary_factor", 1));
  SPILLWAY_ASSIGN_OR_RETURN(const double scaled, reader.Positive("rope_theta", theta));
  if (scaled != theta) {
    return reader.Error("rope_theta",
                        absl::StrCat("the model's rope_theta is ", theta, "; the two must agree"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> RopeTheta(const ConfigReader& config, const std::string& origin) {
  SPILLWAY_ASSIGN_OR_RETURN(const double theta,
                            config.Positive("rope_theta", ModelConfig().rope_theta));
  const json* parameters = config.Find("rope_parameters");
  if (parameters == nullptr) return theta;
  if (!parameters->is_object()) return config.Error("rope_parameters", "an object is expected");
  const ConfigReader reader(*parameters, origin, "rope_parameters.");
  for (const auto& [key, unused] : parameters->items()) {
    if (key != "rope_theta" && key != "rope_type" && key != "type" &&
        key != "partial_rotary_factor") {
      return reader.Error(key.c_str(), "this is not supported: only rope_type and rope_theta are");
    }
  }
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeString("rope_type", "default"));
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeString("type", "default"));
  SPILLWAY_RETURN_IF_ERROR(reader.MustBeNumber("partial_rotary_factor", 1));
  SPILLWAY_ASSIGN_OR_RETURN(const double newer, reader.Positive("rope_theta", theta));
  if (config.Find("rope_theta") != nullptr && newer != theta) {
    return reader.Error(
        "rope_theta", absl::StrCat("rope_theta beside it is ", Excerpt(*config.Find("rope_theta")),
                                   "; the two must agree"));
  }
  return newer;
}

absl::Status ReadSizes(const ConfigReader& config, ModelConfig* model) {
  SPILLWAY_ASSIGN_OR_RETURN(model->vocab_size, config.Size("vocab_size"));
  SPILLWAY_ASSIGN_OR_RETURN(model->hidden_size, config.Size("hidden_size"));
  SPILLWAY_ASSIGN_OR_RETURN(model->intermediate_size, config.Size("intermediate_size"));
  SPILLWAY_ASSIGN_OR_RETURN(model->num_layers,
                            config.Size("num_hidden_layers", std::nullopt, kMaxLayers));
  SPILLWAY_ASSIGN_OR_RETURN(model->num_heads, config.Size("num_attention_heads"));
  SPILLWAY_ASSIGN_OR_RETURN(model->num_kv_heads,
                            config.Size("num_key_value_heads", model->num_heads));
  SPILLWAY_ASSIGN_OR_RETURN(model->max_position_embeddings,
                            config.Size("max_position_embeddings", 2048));
  if (model->num_heads % model->num_kv_heads != 0) {
    return config.Error("num_key_value_heads", absl::StrCat("a divisor of num_attention_heads, ",
                                                            model->num_heads, ", is expected"));
  }
  if (config.Find("head_dim") == nullptr && model->hidden_size % model->num_heads != 0) {
    return config.Error("hidden_size",
                        absl::StrCat("without head_dim a multiple of num_attention_heads, ",
                                     model->num_heads, ", is expected"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      model->head_dim,
      config.Size("head_dim", std::max<int64_t>(1, model->hidden_size / model->num_heads),
                  kMaxSize));
  if (model->head_dim % 2 != 0) {
    return config.Error("head_dim",
                        absl::StrCat("rope needs an even one; this model's is ", model->head_dim));
  }
  if (model->head_dim > kMaxSize / model->num_heads) {
    return config.Error("head_dim", absl::StrCat(model->num_heads, " such heads are more than ",
                                                 kMaxSize, " wide"));
  }
  return absl::OkStatus();
}

// Reads `eos_token_id`, which is one id, a list of ids, or absent.
absl::StatusOr<std::vector<int64_t>> EosTokenIds(const ConfigReader& config, int64_t vocab_size) {
  const json* value = config.Find("eos_token_id");
  std::vector<int64_t> ids;
  if (value == nullptr) return ids;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return config.Error("eos_token_id",
                          absl::StrCat("tokens below vocab_size, ", vocab_size, ", are expected"));
    }
    ids.push_back(static_cast<int64_t>(id.get<uint64_t>()));
  }
  return ids;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text, const std::string& origin) {
  SPILLWAY_ASSIGN_OR_RETURN(const json object, ParseStrictJson(text, origin));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": is ", Excerpt(object), "; a JSON object is expected"));
  }
  const ConfigReader config(object, origin);
  SPILLWAY_RETURN_IF_ERROR(CheckArchitecture(config));
  ModelConfig model;
  model.json = text;
  SPILLWAY_RETURN_IF_ERROR(ReadSizes(config, &model));
  SPILLWAY_ASSIGN_OR_RETURN(model.rms_norm_eps,
                            config.Positive("rms_norm_eps", model.rms_norm_eps));
  if (model.rms_norm_eps >= 1) return config.Error("rms_norm_eps", "a number below 1 is expected");
  SPILLWAY_ASSIGN_OR_RETURN(model.rope_theta, RopeTheta(config, origin));
  SPILLWAY_RETURN_IF_ERROR(CheckRopeScaling(config, origin, model.rope_theta));
  SPILLWAY_ASSIGN_OR_RETURN(model.tie_word_embeddings, config.Bool("tie_word_embeddings", false));
  SPILLWAY_ASSIGN_OR_RETURN(model.eos_token_ids, EosTokenIds(config, model.vocab_size));
  return model;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  SPILLWAY_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  SPILLWAY_RETURN_IF_ERROR(CheckTokenizerIds(folder, config.vocab_size));
  return config;
}

}  // namespace spillway::hf
