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
#include "tools/hf/model_folder.h"
#include "tools/hf/model_types.h"
#include "tools/hf/strict_json.h"
#include "tools/hf/tokenizer_ids.h"

namespace spillway::hf {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 100'000;

std::string WholeNumberUpTo(int64_t max) { return absl::StrCat("a whole number from 1 to ", max); }

bool IsSize(const json& value, int64_t max) {
  return value.is_number_unsigned() && value.get<uint64_t>() > 0 &&
         value.get<uint64_t>() <= static_cast<uint64_t>(max);
}

// Whether a value of a config is a value of the table. true is no 1, and 1.0 is.
bool Equal(const json& value, const ordered_json& of_table) {
  if (of_table.is_number())
    return value.is_number() && value.get<double>() == of_table.get<double>();
  return value == json(of_table);
}

// Returns `"a", "b" and "c"`.
std::string Listed(const std::vector<std::string>& names) {
  std::string listed;
  for (size_t i = 0; i < names.size(); ++i) {
    const char* const before = i == 0 ? "" : i + 1 == names.size() ? " and " : ", ";
    absl::StrAppend(&listed, before, Excerpt(names[i]));
  }
  return listed;
}

std::vector<std::string> KeysOf(const ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : object.items()) keys.push_back(key);
  return keys;
}

std::string OnlySupported(const std::vector<std::string>& names) {
  return absl::StrCat("only ", Listed(names), names.size() == 1 ? " is" : " are", " supported");
}

// Reads the keys of one JSON object. A key with the value null counts as absent, because Hugging
// Face writes defaults in that way.
class ConfigReader {
 public:
  ConfigReader(const json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  // Whether the key is there, even if it is null.
  bool Has(const std::string& key) const { return object_.contains(key); }

  // Returns null if the key is absent.
  const json* Find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::Status Error(const std::string& key, std::string_view expected) const {
    const json* value = Find(key);
    std::string found = value == nullptr ? Has(key) ? "null" : "missing" : Excerpt(*value);
    return absl::InvalidArgumentError(
        absl::StrCat(origin_, ": ", prefix_, key, " is ", found, "; ", std::string(expected)));
  }

  absl::StatusOr<int64_t> Size(const std::string& key,
                               std::optional<int64_t> fallback = std::nullopt,
                               int64_t max = kMaxSize) const {
    const json* value = Find(key);
    if (value == nullptr && fallback.has_value()) return *fallback;
    if (value == nullptr || !IsSize(*value, max))
      return Error(key, absl::StrCat(WholeNumberUpTo(max), " is expected"));
    return static_cast<int64_t>(value->get<uint64_t>());
  }

  absl::StatusOr<double> Positive(const std::string& key,
                                  std::optional<double> fallback = std::nullopt) const {
    const json* value = Find(key);
    if (value == nullptr && fallback.has_value()) return *fallback;
    if (value == nullptr || !value->is_number() || !(value->get<double>() > 0) ||
        !std::isfinite(value->get<double>())) {
      return Error(key, "a positive number is expected");
    }
    return value->get<double>();
  }

  absl::StatusOr<bool> Bool(const std::string& key, bool fallback) const {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Error(key, "true or false is expected");
    return value->get<bool>();
  }

  // For a key that changes what is computed: an error if it has another value than `only`.
  absl::Status MustBe(const std::string& key, const ordered_json& only) const {
    const json* value = Find(key);
    if (value == nullptr || Equal(*value, only)) return absl::OkStatus();
    return Error(key, absl::StrCat("only ", only.dump(), " is supported"));
  }

 private:
  const json& object_;
  const std::string origin_;
  const std::string prefix_;
};

// Reads the sizes of a model under the keys that its type gives them.
class SizeReader {
 public:
  SizeReader(const ConfigReader& config, const ordered_json& type) : config_(config), type_(type) {}

  absl::Status Read(ModelConfig* model) {
    SPILLWAY_ASSIGN_OR_RETURN(model->vocab_size, config_.Size(Key("vocabulary")));
    SPILLWAY_ASSIGN_OR_RETURN(model->hidden_size, config_.Size(Key("width")));
    SPILLWAY_ASSIGN_OR_RETURN(model->num_layers,
                              config_.Size(Key("layers"), std::nullopt, kMaxLayers));
    SPILLWAY_ASSIGN_OR_RETURN(model->num_heads, config_.Size(Key("heads")));
    SPILLWAY_ASSIGN_OR_RETURN(model->num_kv_heads, Following("kv_heads", model->num_heads));
    SPILLWAY_ASSIGN_OR_RETURN(model->intermediate_size,
                              Following("mlp_width", 4 * model->hidden_size));
    SPILLWAY_ASSIGN_OR_RETURN(model->max_position_embeddings, Positions());
    if (model->num_heads % model->num_kv_heads != 0) {
      return config_.Error(Key("kv_heads"), absl::StrCat("a divisor of ", Key("heads"), ", ",
                                                         model->num_heads, ", is expected"));
    }
    if (model->intermediate_size > kMaxSize) {
      return config_.Error(Key("mlp_width"),
                           absl::StrCat("4 times ", Key("width"), " is more than ", kMaxSize));
    }
    return ReadHeadDim(model);
  }

 private:
  // Returns an empty text if no key gives the size.
  std::string Key(const char* size) const { return type_["keys"].value(size, ""); }

  bool Follows(const char* size) const {
    const ordered_json& follow = type_["follow"];
    return std::find(follow.begin(), follow.end(), size) != follow.end();
  }

  // Reads a size, or returns what follows from other sizes.
  absl::StatusOr<int64_t> Following(const char* size, int64_t follows) const {
    const std::string key = Key(size);
    if (key.empty()) return follows;
    return config_.Size(key, Follows(size) ? std::optional(follows) : std::nullopt);
  }

  absl::StatusOr<int64_t> Positions() const {
    const ordered_json& defaults = type_["defaults"];
    return config_.Size(Key("positions"), defaults.contains("positions")
                                              ? std::optional(defaults["positions"].get<int64_t>())
                                              : std::nullopt);
  }

  absl::Status ReadHeadDim(ModelConfig* model) const {
    const std::string key = Key("head_dim");
    const bool follows = key.empty() || (Follows("head_dim") && config_.Find(key) == nullptr);
    if (follows && model->hidden_size % model->num_heads != 0) {
      return config_.Error(Key("width"),
                           absl::StrCat(key.empty() ? "" : "without head_dim ", "a multiple of ",
                                        Key("heads"), ", ", model->num_heads, ", is expected"));
    }
    SPILLWAY_ASSIGN_OR_RETURN(
        model->head_dim,
        Following("head_dim", std::max<int64_t>(1, model->hidden_size / model->num_heads)));
    const std::string& told = key.empty() ? Key("heads") : key;
    if (type_.contains("rope") && model->head_dim % 2 != 0) {
      return config_.Error(
          told, absl::StrCat("rope needs an even one; this model's is ", model->head_dim));
    }
    const int64_t heads = HeadsOfWidestInput(*model);
    if (model->head_dim > kMaxSize / heads) {
      return config_.Error(told,
                           absl::StrCat(heads, " such heads are more than ", kMaxSize, " wide"));
    }
    return absl::OkStatus();
  }

  // Queries, keys and values of a token may lie side by side.
  int64_t HeadsOfWidestInput(const ModelConfig& model) const {
    int64_t widest = 0;
    for (const ordered_json& sublayer : type_["sublayers"]) {
      if (!sublayer.contains("attention")) continue;
      for (const ordered_json& input : sublayer["attention"]["inputs"]) {
        int64_t heads = 0;
        for (const ordered_json& part : input["gives"])
          heads += part == "query" ? model.num_heads : model.num_kv_heads;
        widest = std::max(widest, heads);
      }
    }
    return widest;
  }

  const ConfigReader& config_;
  const ordered_json& type_;
};

absl::StatusOr<const ordered_json*> ReadModelType(const ConfigReader& config) {
  const std::vector<std::string> known = KeysOf(ModelTypes());
  const json* value = config.Find("model_type");
  if (value == nullptr || !value->is_string() || !ModelTypes().contains(value->get<std::string>()))
    return config.Error("model_type", OnlySupported(known));
  return &ModelTypeOf(value->get<std::string>());
}

absl::Status CheckArchitecture(const ConfigReader& config, const ordered_json& type) {
  const json* architectures = config.Find("architectures");
  const json only = json::array({type["architecture"].get<std::string>()});
  if (architectures != nullptr && *architectures != only)
    return config.Error("architectures", absl::StrCat("only ", only.dump(), " is supported"));
  for (const auto& [key, value] : type["only"].items())
    SPILLWAY_RETURN_IF_ERROR(config.MustBe(key, value));
  if (config.Find("quantization_config") != nullptr) {
    return config.Error("quantization_config",
                        "weights must be F32, F16 or BF16: take the original model");
  }
  return absl::OkStatus();
}

// transformers gives GPT-2's sizes a second name each, and the second one wins.
absl::Status CheckAliases(const ConfigReader& config, const ordered_json& type) {
  if (!type.contains("aliases")) return absl::OkStatus();
  for (const auto& [alias, key] : type["aliases"].items()) {
    const json* value = config.Find(alias);
    const json* named = config.Find(key.get<std::string>());
    if (value == nullptr || (named != nullptr && *value == *named)) continue;
    return config.Error(alias, absl::StrCat("it is another name of ", key.get<std::string>(),
                                            "; the two must agree"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Activation(const ConfigReader& config, const ordered_json& type) {
  const ordered_json& kinds = type["activation"]["kinds"];
  const std::string key = type["activation"]["key"];
  const json* value = config.Find(key);
  if (value == nullptr) return kinds.begin().value().get<std::string>();
  if (!value->is_string() || !kinds.contains(value->get<std::string>()))
    return config.Error(key, OnlySupported(KeysOf(kinds)));
  return kinds[value->get<std::string>()].get<std::string>();
}

absl::Status ReadDropouts(const ConfigReader& config, const ordered_json& type,
                          ModelConfig* model) {
  for (const std::string key : type["dropouts"]) {
    const json* value = config.Find(key);
    if (value == nullptr) continue;
    if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() < 1))
      return config.Error(key, "a number from 0 to below 1 is expected");
    if (value->get<double>() <= model->dropout) continue;
    model->dropout = value->get<double>();
    model->dropout_key = key;
  }
  return absl::OkStatus();
}

// What `rope_scaling` or `rope_parameters` says.
struct Rope {
  std::optional<double> theta;
  RopeScaling scaling;
};

// The keys of rope that each kind of scaling has, beside theta and the kind.
std::vector<std::string> KeysOfScaling(RopeScaling::Kind kind) {
  if (kind == RopeScaling::Kind::kLinear) return {"factor"};
  if (kind == RopeScaling::Kind::kLlama3)
    return {"factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"};
  return {};
}

absl::StatusOr<RopeScaling::Kind> ScalingKind(const ConfigReader& rope, const ordered_json& type) {
  const std::string key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  const json* value = rope.Find(key);
  if (value == nullptr) return RopeScaling::Kind::kDefault;
  const std::vector<std::string> known = type["rope"];
  const auto found = value->is_string()
                         ? std::find(known.begin(), known.end(), value->get<std::string>())
                         : known.end();
  if (found == known.end()) return rope.Error(key, OnlySupported(known));
  const json* older = rope.Find("type");
  if (older != nullptr && *older != *value) {
    return rope.Error(
        "type", absl::StrCat("rope_type beside it is ", Excerpt(*value), "; the two must agree"));
  }
  if (*found == "linear") return RopeScaling::Kind::kLinear;
  return *found == "llama3" ? RopeScaling::Kind::kLlama3 : RopeScaling::Kind::kDefault;
}

absl::StatusOr<Rope> ReadRope(const ConfigReader& rope, const ordered_json& type,
                              const json& object, bool ignores_further_keys) {
  Rope read;
  RopeScaling& scaling = read.scaling;
  SPILLWAY_ASSIGN_OR_RETURN(scaling.kind, ScalingKind(rope, type));
  SPILLWAY_RETURN_IF_ERROR(rope.MustBe("partial_rotary_factor", 1));
  if (rope.Find("rope_theta") != nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(read.theta, rope.Positive("rope_theta"));
  }
  std::vector<std::string> known = KeysOfScaling(scaling.kind);
  for (const char* key : {"partial_rotary_factor", "rope_theta", "rope_type", "type"})
    known.emplace_back(key);
  for (const auto& [key, unused] : object.items()) {
    if (ignores_further_keys && scaling.kind == RopeScaling::Kind::kDefault) break;
    if (std::find(known.begin(), known.end(), key) == known.end())
      return rope.Error(key, "this key is not supported with this rope_type");
  }
  if (scaling.kind == RopeScaling::Kind::kDefault) return read;
  SPILLWAY_ASSIGN_OR_RETURN(scaling.factor, rope.Positive("factor"));
  if (scaling.kind == RopeScaling::Kind::kLinear) return read;
  SPILLWAY_ASSIGN_OR_RETURN(scaling.low_frequencies, rope.Positive("low_freq_factor"));
  SPILLWAY_ASSIGN_OR_RETURN(scaling.high_frequencies, rope.Positive("high_freq_factor"));
  SPILLWAY_ASSIGN_OR_RETURN(scaling.original_positions,
                            rope.Size("original_max_position_embeddings"));
  if (scaling.high_frequencies <= scaling.low_frequencies)
    return rope.Error("high_freq_factor", "a number above low_freq_factor is expected");
  return read;
}

// transformers 5 has all of rope in `rope_parameters`; before, it was `rope_theta` and
// `rope_scaling`, whose kind older files call "type". What is given twice must agree.
absl::Status ReadRopes(const ConfigReader& config, const ordered_json& type, const json& object,
                       const std::string& origin, ModelConfig* model) {
  if (!type.contains("rope")) return absl::OkStatus();
  const json* parameters = config.Find("rope_parameters");
  const json* scaling = config.Find("rope_scaling");
  SPILLWAY_ASSIGN_OR_RETURN(model->rope_theta,
                            config.Positive("rope_theta", type["defaults"]["theta"].get<double>()));
  const double top_theta = model->rope_theta;
  if (parameters != nullptr) {
    if (!parameters->is_object())
      return config.Error("rope_parameters", "null or an object is expected");
    const ConfigReader reader(*parameters, origin, "rope_parameters.");
    SPILLWAY_ASSIGN_OR_RETURN(const Rope rope, ReadRope(reader, type, *parameters, false));
    model->rope_scaling = rope.scaling;
    if (config.Find("rope_theta") != nullptr &&
        rope.theta.value_or(model->rope_theta) != model->rope_theta) {
      return reader.Error("rope_theta",
                          absl::StrCat("rope_theta beside it is ", Excerpt(object["rope_theta"]),
                                       "; the two must agree"));
    }
    model->rope_theta = rope.theta.value_or(model->rope_theta);
  }
  if (scaling != nullptr) {
    if (!scaling->is_object()) return config.Error("rope_scaling", "null or an object is expected");
    const ConfigReader reader(*scaling, origin, "rope_scaling.");
    if (reader.Find("rope_type") == nullptr && reader.Find("type") == nullptr)
      return config.Error("rope_scaling", "a rope_type is expected in it");
    SPILLWAY_ASSIGN_OR_RETURN(const Rope rope, ReadRope(reader, type, *scaling, true));
    // transformers takes theta from rope_scaling, else from rope_theta, never from rope_parameters.
    const double theta = rope.theta.has_value() ? *rope.theta : top_theta;
    if (theta != model->rope_theta) {
      return reader.Error("rope_theta",
                          absl::StrCat("the model's rope_theta is ", Excerpt(model->rope_theta),
                                       "; the two must agree"));
    }
    if (parameters != nullptr && rope.scaling != model->rope_scaling)
      return config.Error("rope_scaling", "it differs from rope_parameters; the two must agree");
    model->rope_scaling = rope.scaling;
  }
  // transformers prefers this one to the scaling's own.
  const char* const positions = "original_max_position_embeddings";
  if (model->rope_scaling.kind == RopeScaling::Kind::kLlama3 && config.Find(positions) != nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(const int64_t original, config.Size(positions));
    if (original != model->rope_scaling.original_positions)
      return config.Error(positions, "it differs from rope's; the two must agree");
  }
  return absl::OkStatus();
}

// Returns the sliding window, or 0 if the model has none.
absl::StatusOr<int64_t> SlidingWindow(const ConfigReader& config, const ordered_json& type) {
  if (!type.contains("window")) return 0;
  const std::string key = type["window"]["key"];
  const std::string enabled_by = type["window"].value("enabled_by", "");
  const json* value = config.Find(key);
  if (value != nullptr) SPILLWAY_RETURN_IF_ERROR(config.Size(key).status());
  if (enabled_by.empty()) {
    if (!config.Has(key))
      return config.Error(key, absl::StrCat("null or ", WholeNumberUpTo(kMaxSize), " is expected"));
  } else {
    SPILLWAY_ASSIGN_OR_RETURN(const bool is_on, config.Bool(enabled_by, false));
    if (!is_on) return 0;
    if (value == nullptr) {
      return config.Error(key, absl::StrCat(WholeNumberUpTo(kMaxSize), " is expected, because ",
                                            enabled_by, " is true"));
    }
  }
  return value == nullptr ? 0 : config.Size(key);
}

absl::Status CheckLayerTypes(const ConfigReader& config, const json& types, int64_t num_layers) {
  if (!types.is_array() || types.size() != static_cast<size_t>(num_layers)) {
    return config.Error("layer_types", absl::StrCat("a list of ", num_layers,
                                                    " types is expected, one of each layer"));
  }
  for (const json& of : types) {
    if (of != "full_attention" && of != "sliding_attention") {
      return config.Error("layer_types",
                          absl::StrCat("it holds ", Excerpt(of),
                                       "; only \"full_attention\" and \"sliding_attention\" are "
                                       "supported"));
    }
  }
  return absl::OkStatus();
}

// Reads which layers have a sliding window: those that `layer_types` says, or, without it, those
// from a number on, or all.
absl::Status ReadWindows(const ConfigReader& config, const ordered_json& type, ModelConfig* model) {
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t window, SlidingWindow(config, type));
  const std::string from_key =
      type.contains("window") ? type["window"].value("from", "") : std::string();
  const json* types = config.Find("layer_types");
  if (types != nullptr)
    SPILLWAY_RETURN_IF_ERROR(CheckLayerTypes(config, *types, model->num_layers));
  int64_t from = 0;
  if (window > 0 && types == nullptr && !from_key.empty()) {
    const json* value = config.Find(from_key);
    if (value == nullptr || !value->is_number_unsigned() ||
        value->get<uint64_t>() > static_cast<uint64_t>(kMaxSize)) {
      return config.Error(from_key,
                          absl::StrCat("a whole number from 0 to ", kMaxSize, " is expected"));
    }
    from = static_cast<int64_t>(value->get<uint64_t>());
  }
  for (int64_t layer = 0; layer < model->num_layers; ++layer) {
    const bool slides = types == nullptr
                            ? window > 0 && layer >= from
                            : (*types)[static_cast<size_t>(layer)] == "sliding_attention";
    if (slides && window == 0)
      return config.Error("layer_types",
                          "no sliding window is on that sliding_attention could have");
    if (!slides && window > 0 && from_key.empty())
      return config.Error("layer_types", "every layer has the sliding window that is on");
    if (window > 0) model->windows.push_back(slides ? window : 0);
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

// Whether a folder's weights have the names of the table without its prefix, as the published GPT-2
// has. False if there are none that can be read; what reads them says why.
bool LeavesPrefixOut(const std::string& folder, const ordered_json& names) {
  const auto weights = ModelFolder::Open(folder);
  if (!weights.ok()) return false;
  const std::string tokens = absl::StrCat(names["tokens"].get<std::string>(), ".weight");
  return (*weights)->Find(absl::StrCat(names["prefix"].get<std::string>(), tokens)) == nullptr &&
         (*weights)->Find(tokens) != nullptr;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& text, const std::string& origin) {
  SPILLWAY_ASSIGN_OR_RETURN(const json object, ParseStrictJson(text, origin));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": is ", Excerpt(object), "; a JSON object is expected"));
  }
  const ConfigReader config(object, origin);
  SPILLWAY_ASSIGN_OR_RETURN(const ordered_json* const of, ReadModelType(config));
  const ordered_json& type = *of;
  const ordered_json& defaults = type["defaults"];
  SPILLWAY_RETURN_IF_ERROR(CheckArchitecture(config, type));
  SPILLWAY_RETURN_IF_ERROR(CheckAliases(config, type));
  ModelConfig model;
  model.model_type = object["model_type"].get<std::string>();
  model.json = text;
  SPILLWAY_ASSIGN_OR_RETURN(model.activation, Activation(config, type));
  SPILLWAY_RETURN_IF_ERROR(ReadDropouts(config, type, &model));
  SPILLWAY_RETURN_IF_ERROR(SizeReader(config, type).Read(&model));
  const std::string epsilon = type["keys"]["epsilon"];
  SPILLWAY_ASSIGN_OR_RETURN(model.rms_norm_eps,
                            config.Positive(epsilon, defaults["epsilon"].get<double>()));
  if (model.rms_norm_eps >= 1) return config.Error(epsilon, "a number below 1 is expected");
  SPILLWAY_RETURN_IF_ERROR(ReadRopes(config, type, object, origin, &model));
  SPILLWAY_RETURN_IF_ERROR(ReadWindows(config, type, &model));
  SPILLWAY_ASSIGN_OR_RETURN(model.tie_word_embeddings,
                            config.Bool("tie_word_embeddings", defaults["tied"].get<bool>()));
  SPILLWAY_ASSIGN_OR_RETURN(model.eos_token_ids, EosTokenIds(config, model.vocab_size));
  return model;
}

bool MayLeavePrefixOut(const ModelConfig& config) {
  return ModelTypeOf(config.model_type)["names"].value("prefix_is_optional", false);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  SPILLWAY_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  SPILLWAY_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  config.has_prefix = !MayLeavePrefixOut(config) ||
                      !LeavesPrefixOut(folder, ModelTypeOf(config.model_type)["names"]);
  SPILLWAY_RETURN_IF_ERROR(CheckTokenizerIds(folder, config.vocab_size));
  return config;
}

}  // namespace spillway::hf
