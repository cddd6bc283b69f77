// SPDX-License-Identifier: Apache-2.0
//
// An export has four steps. It finds the commit, reads from the commit's user state which model it
// is of, derives from the model which tensors there must be, and streams them a page or a tile at a
// time.

#include "tools/spillway/store/snapshot_export.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/store/store_view.h"
#include "spillway/optimizer.h"
#include "src/base/status_macros.h"
#include "src/engine/tensor_reader.h"
#include "src/optim/element_codecs.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/real_path.h"
#include "tools/spillway/command/weight_progress.h"
#include "tools/spillway/store/opened_store.h"
#include "tools/spillway/store/store_summary.h"
#include "tools/spillway/store/stored_spec.h"
#include "tools/trainer/export.h"
#include "tools/trainer/master_weights.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/train_state.h"

namespace spillway::command {
namespace {

using engine::TensorReader;

struct Commit {
  uint64_t number = 0;
  std::string user_state;
};

absl::StatusOr<Commit> FindCommit(const io::StoreView& view, const std::string& label) {
  if (label.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto last, view.catalog().ReadCommit());
    if (!last) return absl::FailedPreconditionError("the store has no commit yet");
    if (view.holder().empty()) return Commit{last->number, last->user_state};
    return absl::FailedPreconditionError(
        absl::StrFormat("the store is in use by %s, and its last commit may go while it is read: "
                        "wait for it to end, or name a snapshot",
                        view.holder()));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto snapshots, view.catalog().ReadSnapshots());
  for (const io::SnapshotRecord& snapshot : snapshots) {
    if (snapshot.label == label) return Commit{snapshot.number, snapshot.user_state};
  }
  return absl::NotFoundError(
      absl::StrFormat("there is no snapshot '%s'; spillway snapshot list shows them", label));
}

// Returns the names that state tensors of a parameter can have, under any rule and format.
std::set<std::string> StateNames(const trainer::ParameterShape& parameter) {
  const TensorSpec weight = {
      .name = parameter.name, .dtype = DType::kF16, .shape = parameter.shape};
  std::set<std::string> names;
  for (int kind = 0; kind < kNumRuleKinds; ++kind) {
    for (int format = 0; format < kNumStateFormats; ++format) {
      for (const bool has_all : {false, true}) {
        const Rule rule = {.kind = static_cast<RuleKind>(kind),
                           .momentum = has_all ? 0.5 : 0.0,
                           .centered = has_all,
                           .amsgrad = has_all};
        const auto specs = StateSpecs(rule, static_cast<StateFormat>(format), weight);
        if (!specs.ok()) continue;
        for (const TensorSpec& spec : *specs) names.insert(spec.name);
      }
    }
  }
  return names;
}

// The tensors that hold a parameter's values.
struct Weights {
  TensorSpec tensor;
  std::optional<TensorSpec> rest;  // compact state; with `tensor` it gives the master weight
};

// Finds the compact state of a 16-bit weight; none if there is no such tensor. InvalidArgument if
// it or its tiles do not fit the weight's.
absl::StatusOr<std::optional<TensorSpec>> FindRest(TensorReader& reader, const TensorSpec& weight) {
  SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorSpec> rest,
                            FindSpec(reader, weight.name + "/compact"));
  if (!rest) return rest;
  SPILLWAY_RETURN_IF_ERROR(JoinMasterWeights(weight, *rest, {}, {}, {}));
  if (trainer::RestTilesPerTile(weight, *rest) > 0) return rest;
  return absl::InvalidArgumentError("a tile of it lies in two of the weight's");
}

// Finds the tensors that hold the parameter in full. They are its master weight; or the weight
// itself, in fp32, or in 16 bits if it was frozen and so has no state at all; or the 16-bit weight
// and its compact state.
absl::StatusOr<Weights> FindWeights(TensorReader& reader,
                                    const trainer::ParameterShape& parameter) {
  for (const std::string& name : {parameter.name + "/master", parameter.name}) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorSpec> spec, FindSpec(reader, name));
    if (!spec) continue;
    const absl::Status unknown = absl::DataLossError(
        absl::StrFormat("tensor '%s' is not what the model's configuration says", name));
    if (spec->shape != parameter.shape) return unknown;
    if (spec->dtype == DType::kF32) return Weights{*std::move(spec), std::nullopt};
    const bool has_16_bits = spec->dtype == DType::kF16 || spec->dtype == DType::kBF16;
    if (name != parameter.name || !has_16_bits) return unknown;
    auto rest = FindRest(reader, *spec);
    if (absl::IsInvalidArgument(rest.status())) return unknown;
    SPILLWAY_RETURN_IF_ERROR(rest.status());
    if (*rest) return Weights{*std::move(spec), *std::move(rest)};
    for (const std::string& state : StateNames(parameter)) {
      SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorSpec> found, FindSpec(reader, state));
      if (found) return unknown;
    }
    return Weights{*std::move(spec), std::nullopt};
  }
  return absl::DataLossError(absl::StrFormat("the commit has no tensor '%s'", parameter.name));
}

// Hands a piece of the tensor to `consume` as fp32. A piece has whole elements, because pages begin
// at elements.
absl::Status ConsumeAsFloats(const TensorSpec& spec, std::span<const std::byte> bytes,
                             const trainer::ConsumeBytes& consume) {
  if (spec.dtype == DType::kF32) return consume(bytes);
  std::vector<float> floats(bytes.size() / ElementBytes(spec.dtype));
  optim::CodecOf(spec.dtype)
      .decode(bytes.data(), static_cast<int64_t>(floats.size()), floats.data());
  return consume(std::as_bytes(std::span(floats)));
}

// Reads the master weights that a 16-bit weight and its compact state make, a tile of the state at
// a time.
absl::Status ReadJoined(TensorReader& reader, const TensorSpec& weight, const TensorSpec& rest,
                        const trainer::ConsumeBytes& consume) {
  SPILLWAY_ASSIGN_OR_RETURN(const TensorReader::Located weight_pages, reader.Locate(weight));
  SPILLWAY_ASSIGN_OR_RETURN(const TensorReader::Located rest_pages, reader.Locate(rest));
  std::vector<std::byte> weight_bytes, rest_bytes;
  std::vector<float> floats;
  const auto read = [&](const TensorReader::Located& tensor, uint64_t tile,
                        std::vector<std::byte>* out) {
    out->clear();
    return reader.ReadTile(tensor, tile, [out](std::span<const std::byte> bytes) {
      out->insert(out->end(), bytes.begin(), bytes.end());
      return absl::OkStatus();
    });
  };
  const uint64_t per_tile = trainer::RestTilesPerTile(weight, rest);
  const uint64_t row_bytes = weight.size_bytes() / rest.num_rows();  // a vector's rest is one row
  std::span<const std::byte> values;  // of `weight_bytes`, from the next row on
  for (uint64_t tile = 0; tile < rest.num_tiles(); ++tile) {
    if (tile % per_tile == 0) {
      SPILLWAY_RETURN_IF_ERROR(read(weight_pages, tile / per_tile, &weight_bytes));
      values = weight_bytes;
    }
    SPILLWAY_RETURN_IF_ERROR(read(rest_pages, tile, &rest_bytes));
    const uint64_t bytes = rest_bytes.size() / rest.row_bytes() * row_bytes;
    floats.resize(bytes / ElementBytes(weight.dtype));
    SPILLWAY_RETURN_IF_ERROR(
        JoinMasterWeights(weight, rest, values.first(bytes), rest_bytes, floats));
    values = values.subspan(bytes);
    SPILLWAY_RETURN_IF_ERROR(consume(std::as_bytes(std::span(floats))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportFromStore(const ExportRequest& request, const std::atomic<bool>& stop) {
  for (const std::string& folder : request.store) {
    const auto save = RealPath(request.save), store = RealPath(folder);
    if (!LiesIn(save, store) && !LiesIn(store, save)) continue;
    return UsageError(absl::StrFormat(
        "--save %s and the store %s lie in each other; an export is a folder of its own, so name "
        "one elsewhere",
        request.save, folder));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const auto view,
                            OpenView(request.store, io::StoreView::Wanted::kAnyState));
  SPILLWAY_ASSIGN_OR_RETURN(const Commit commit, FindCommit(*view, request.label));
  const auto state = trainer::ParseTrainState(commit.user_state);
  if (!state.ok()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the commit is not one of spillway train: %s", std::string(state.status().message())));
  }
  SPILLWAY_ASSIGN_OR_RETURN(hf::ModelConfig config,
                            hf::ParseModelConfig(state->config_json, "the store's config.json"));
  TensorReader reader(*view, commit.number);
  if (hf::MayLeavePrefixOut(config)) {  // the names are those of the files that the run began from
    SPILLWAY_ASSIGN_OR_RETURN(const auto first,
                              FindSpec(reader, trainer::ListParameters(config).front().name));
    config.has_prefix = first.has_value();
  }
  const auto weights = [&](const trainer::ParameterShape& parameter,
                           const trainer::ConsumeBytes& consume) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const Weights found, FindWeights(reader, parameter));
    const auto consume_if_going = [&](std::span<const std::byte> floats) -> absl::Status {
      if (stop.load()) return absl::CancelledError("interrupted; nothing was exported");
      return consume(floats);
    };
    if (found.rest) return ReadJoined(reader, found.tensor, *found.rest, consume_if_going);
    return reader.Read(found.tensor, [&](std::span<const std::byte> bytes) {
      return ConsumeAsFloats(found.tensor, bytes, consume_if_going);
    });
  };
  WeightProgress progress("exported", config);
  return trainer::ExportWeights(trainer::ListParameters(config), progress.Watch(weights),
                                config.json, request.model, request.save);
}

}  // namespace spillway::command
