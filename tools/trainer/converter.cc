// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/converter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

constexpr char kFormatFlag[] = "--state-format";

// A parameter's weight and state in one format.
struct Stored {
  TensorId weight;
  StateTensors state;
};

// Registers a parameter's weight and state tensors. If `is_stored`, the last commit must have all
// of them; otherwise they may be new, and then they read as zeros until they are written.
absl::StatusOr<Stored> Register(Engine* engine, const ParameterShape& shape,
                                const ModelOptions& options, const TileSizes& tiles,
                                bool is_stored) {
  Stored stored;
  stored.state.format = options.state_format;
  for (const TensorSpec& spec : ParameterTensorSpecs(shape, options, tiles)) {
    if (spec.role == Role::kGradient) continue;
    SPILLWAY_ASSIGN_OR_RETURN(
        const TensorId id, engine->Register(spec, is_stored ? MissingTensor(spec.name) : Reader()));
    if (spec.role == Role::kParameter) {
      stored.weight = id;
    } else {
      stored.state.tensors.push_back(id);
    }
  }
  return stored;
}

}  // namespace

absl::StatusOr<StateFormat> FormatOf(const std::vector<FixedFlag>& fixed) {
  for (const auto& [flag, value] : fixed) {
    if (flag != kFormatFlag) continue;
    for (int format = 0; format < kNumStateFormats; ++format) {
      if (Name(static_cast<StateFormat>(format)) == value) return static_cast<StateFormat>(format);
    }
    return absl::FailedPreconditionError(absl::StrCat("the store's optimizer state is in format '",
                                                      value,
                                                      "', which this program does not know"));
  }
  return StateFormat::kF32;
}

std::vector<FixedFlag> WithFormat(std::vector<FixedFlag> fixed, StateFormat format) {
  std::erase_if(fixed, [](const FixedFlag& flag) { return flag.first == kFormatFlag; });
  if (format != StateFormat::kF32) fixed.emplace_back(kFormatFlag, std::string(Name(format)));
  return fixed;
}

absl::StatusOr<StateChange> ConvertRun(Engine* engine, const hf::ModelConfig& config,
                                       const ModelOptions& options, TrainState state,
                                       const std::atomic<bool>& stop,
                                       const std::function<void(size_t, size_t)>& on_parameter) {
  ModelOptions before = options;
  SPILLWAY_ASSIGN_OR_RETURN(before.state_format, FormatOf(state.fixed));
  const Description model = Describe(config);
  const TileSizes tiles = TilesOfStore(model, state.tiles);
  StateChange change;
  std::vector<ParameterShape> trained = model.parameters;
  std::erase_if(trained,
                [&](const ParameterShape& shape) { return options.groups.IsFrozen(shape.name); });
  size_t done = 0;
  for (const ParameterShape& shape : trained) {
    if (stop)
      return absl::CancelledError(
          "interrupted; the optimizer state is as it was: add --resume --convert to convert it");
    SPILLWAY_ASSIGN_OR_RETURN(const Stored from,
                              Register(engine, shape, before, tiles, /*is_stored=*/true));
    SPILLWAY_ASSIGN_OR_RETURN(const Stored to,
                              Register(engine, shape, options, tiles, /*is_stored=*/false));
    SPILLWAY_RETURN_IF_ERROR(
        ConvertState(engine, options.rule, from.weight, from.state, to.state, &change));
    const std::vector<TensorId>& kept = to.state.tensors;
    for (const TensorId id : from.state.tensors) {
      if (std::find(kept.begin(), kept.end(), id) != kept.end()) continue;
      SPILLWAY_RETURN_IF_ERROR(engine->Unregister(id));
    }
    if (on_parameter) on_parameter(++done, trained.size());
  }
  state.fixed = WithFormat(std::move(state.fixed), options.state_format);
  SPILLWAY_RETURN_IF_ERROR(engine->Commit(SerializeTrainState(state)));
  return change;
}

}  // namespace spillway::trainer
