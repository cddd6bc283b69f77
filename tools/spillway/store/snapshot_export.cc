// SPDX-License-Identifier: Apache-2.0
//
// An export in steps: find the commit; its user state says which model it is of; the model says
// which tensors there must be; they are streamed, a page at a time.

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
#include "src/optim/element_codecs.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/store/opened_store.h"
#include "tools/spillway/store/store_summary.h"
#include "tools/spillway/store/tensor_reader.h"
#include "tools/trainer/export.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/train_state.h"

namespace spillway::command {
namespace {

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

// The names that state tensors of a parameter can have, under any rule and format.
std::set<std::string> StateNames(const trainer::ParameterShape& parameter) {
  const TensorSpec weight = {
      .name = parameter.name, .dtype = DType::kF16, .shape = parameter.shape};
  std::set<std::string> names;
  for (int kind = 0; kind < kNumRuleKinds; ++kind) {
    for (int format = 0; format < kNumStateFormats; ++format) {
      for (const double momentum : {0.0, 0.5}) {
        const Rule rule = {.kind = static_cast<RuleKind>(kind), .momentum = momentum};
        const auto specs = StateSpecs(rule, static_cast<StateFormat>(format), weight);
        if (!specs.ok()) continue;
        for (const TensorSpec& spec : *specs) names.insert(spec.name);
      }
    }
  }
  return names;
}

// The tensor that holds the parameter in full: its master weight, or the weight itself in fp32, or
// in 16 bits where it was frozen, and has no state at all.
absl::StatusOr<TensorSpec> FindWeights(TensorReader& reader,
                                       const trainer::ParameterShape& parameter) {
  for (const std::string& name : {parameter.name + "/master", parameter.name}) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorSpec> spec, reader.Find(name));
    if (!spec) continue;
    const bool has_shape = spec->shape == parameter.shape;
    if (has_shape && spec->dtype == DType::kF32) return *std::move(spec);
    const bool may_be_frozen = spec->dtype == DType::kF16 || spec->dtype == DType::kBF16;
    bool has_state = name != parameter.name || !may_be_frozen;
    for (const std::string& state : StateNames(parameter)) {
      if (has_state) break;
      SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorSpec> found, reader.Find(state));
      has_state = found.has_value();
    }
    if (has_shape && !has_state) return *std::move(spec);
    return absl::DataLossError(
        absl::StrFormat("tensor '%s' is not what the model's configuration says", name));
  }
  return absl::DataLossError(absl::StrFormat("the commit has no tensor '%s'", parameter.name));
}

// A piece of the tensor as fp32. Pages begin at elements.
absl::Status ConsumeAsFloats(const TensorSpec& spec, std::span<const std::byte> bytes,
                             const trainer::ConsumeBytes& consume) {
  if (spec.dtype == DType::kF32) return consume(bytes);
  std::vector<float> floats(bytes.size() / ElementBytes(spec.dtype));
  optim::CodecOf(spec.dtype)
      .decode(bytes.data(), static_cast<int64_t>(floats.size()), floats.data());
  return consume(std::as_bytes(std::span(floats)));
}

}  // namespace

absl::Status ExportFromStore(const ExportRequest& request, const std::atomic<bool>& stop) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto view,
                            OpenView(request.store, io::StoreView::Wanted::kAnyState));
  SPILLWAY_ASSIGN_OR_RETURN(const Commit commit, FindCommit(*view, request.label));
  const auto state = trainer::ParseTrainState(commit.user_state);
  if (!state.ok()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the commit is not one of spillway train: %s", std::string(state.status().message())));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const hf::ModelConfig config,
                            hf::ParseModelConfig(state->config_json, "the store's config.json"));
  TensorReader reader(*view, commit.number);
  const auto weights = [&](const trainer::ParameterShape& parameter,
                           const trainer::ConsumeBytes& consume) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec spec, FindWeights(reader, parameter));
    return reader.Read(spec, [&](std::span<const std::byte> bytes) -> absl::Status {
      if (stop.load()) return absl::CancelledError("interrupted; nothing was exported");
      return ConsumeAsFloats(spec, bytes, consume);
    });
  };
  return trainer::ExportWeights(trainer::ListParameters(config), weights, config.json,
                                request.model, request.save);
}

}  // namespace spillway::command
