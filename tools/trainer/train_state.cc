// SPDX-License-Identifier: Apache-2.0
//
// Writes and reads the user state of a training run's commits.

#include "tools/trainer/train_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tools/hf/strict_json.h"
#include "xxhash.h"

namespace spillway::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

absl::Status Malformed(const std::string& what) {
  return absl::DataLossError(absl::StrCat("the store's training state is not readable: ", what));
}

// nlohmann throws if a key is missing or has the wrong type; ParseTrainState turns that into a
// Status.
TrainState FromJson(const Json& json) {
  TrainState state;
  state.step = json.at("step").get<int64_t>();
  state.applied_updates = json.at("applied_updates").get<int64_t>();
  state.data_position = json.at("data_position").get<uint64_t>();
  state.loss_scale.scale = json.at("loss_scale").at("scale").get<float>();
  state.loss_scale.good_steps = json.at("loss_scale").at("good_steps").get<int64_t>();
  const Json& loss = json.at("last_loss");
  state.last_loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>();
  state.total_steps = json.value("total_steps", int64_t{0});
  if (const auto tiles = json.find("tiles"); tiles != json.end())
    state.tiles = {tiles->at("values").get<int64_t>(), tiles->at("state").get<int64_t>()};
  state.computed_by = json.value("computed_by", std::string());
  for (const auto& [flag, value] : json.at("fixed").items()) {
    state.fixed.emplace_back(flag, value.get<std::string>());
  }
  state.config_json = json.at("config_json").get<std::string>();
  return state;
}

}  // namespace

std::string Summary(const ComputedBy& by) {
  const std::string algorithms = absl::StrJoin(by.algorithms, "\n");
  return absl::StrFormat("%s; %s; %d algorithms, %016x", by.gpu, by.library, by.algorithms.size(),
                         XXH3_64bits(algorithms.data(), algorithms.size()));
}

std::string SerializeTrainState(const TrainState& state) {
  Json fixed = Json::object();
  for (const auto& [flag, value] : state.fixed) fixed[flag] = value;
  Json json = {
      {"v", kVersion},
      {"step", state.step},
      {"applied_updates", state.applied_updates},
      {"data_position", state.data_position},
      {"loss_scale",
       {{"scale", state.loss_scale.scale}, {"good_steps", state.loss_scale.good_steps}}},
      {"last_loss", state.last_loss},
      {"total_steps", state.total_steps},
      {"fixed", fixed},
      {"config_json", state.config_json},
  };
  if (state.tiles != TileSizes())
    json["tiles"] = {{"values", state.tiles.values}, {"state", state.tiles.state}};
  if (!state.computed_by.empty()) json["computed_by"] = state.computed_by;
  // A commit must not fail because config.json has text that is not valid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<TrainState> ParseTrainState(std::string_view text) {
  // JSON that is nested too deep must not be copied or printed, which recurses.
  if (const auto checked = hf::ParseStrictJson(text, "JSON"); !checked.ok())
    return Malformed(std::string(checked.status().message()));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return Malformed("it is not a JSON object (was the store made by another program?)");
  const Json version = json.value("v", Json());
  if (version != kVersion) {
    return Malformed(
        absl::StrFormat("version %s, this program reads %d", version.dump(), kVersion));
  }
  try {
    TrainState state = FromJson(json);
    if (state.step < 0 || state.applied_updates < 0 || state.applied_updates > state.step ||
        !(state.loss_scale.scale > 0)) {
      return Malformed("a counter or the loss scale is out of range");
    }
    const TileSizes& tiles = state.tiles;
    if (tiles != TileSizes() &&
        (tiles.state < 1 || tiles.values < tiles.state || tiles.values > kMostTileElements)) {
      return Malformed("the size of its tiles is out of range");
    }
    return state;
  } catch (const Json::exception& error) {
    return Malformed(error.what());
  }
}

absl::Status CheckSameNumbers(const std::vector<FixedFlag>& stored,
                              const std::vector<FixedFlag>& given) {
  const auto value_of = [](const std::vector<FixedFlag>& flags,
                           const std::string& name) -> std::string {
    const auto it = std::find_if(flags.begin(), flags.end(),
                                 [&](const FixedFlag& f) { return f.first == name; });
    if (it != flags.end()) return it->second;
    // FixedFlags leaves these out at the value that was in effect before the flags existed.
    if (name == "--optimizer") return "adamw";
    if (name == "--dampening") return "0";
    if (name == "--device") return "host";
    for (const char* flag : {"--nesterov", "--centered", "--amsgrad", "--maximize"}) {
      if (name == flag) return "off";
    }
    return name == "--state-format" ? "fp32" : "(nothing)";
  };
  std::vector<std::string> names;  // flags that differ, each once
  for (const auto* flags : {&stored, &given}) {
    for (const auto& [name, value] : *flags) {
      if (value_of(stored, name) != value_of(given, name) && !absl::c_linear_search(names, name))
        names.push_back(name);
    }
  }
  if (names.empty()) return absl::OkStatus();
  const bool can_convert = names == std::vector<std::string>{"--state-format"};
  // Other flags may differ as a consequence of these.
  for (const char* cause : {"--optimizer", "--state-format"}) {
    if (!absl::c_linear_search(names, cause)) continue;
    names = {cause};
    break;
  }
  const auto append = [&](std::string* text, const std::string& name) {
    absl::StrAppendFormat(text, "%s was %s in the store's run and is %s now", name,
                          value_of(stored, name), value_of(given, name));
  };
  const std::string message = absl::StrFormat(
      "cannot resume: %s, which would change the numbers; give the same %s, %sor train into a new "
      "store",
      absl::StrJoin(names, "; ", append), names.size() == 1 ? "value" : "values",
      can_convert ? "add --convert, " : "");
  const bool is_input =
      absl::c_linear_search(names, "--model") || absl::c_linear_search(names, "--data");
  return is_input ? absl::FailedPreconditionError(message) : absl::InvalidArgumentError(message);
}

}  // namespace spillway::trainer
