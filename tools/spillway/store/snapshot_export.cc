// SPDX-License-Identifier: Apache-2.0
//
// An export in steps: find the commit; its user state says which model it is of; the model says
// which tensors there must be; they are streamed, a page at a time.

#include "tools/spillway/store/snapshot_export.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/strings/str_format.h"
#include "io/store/store_view.h"
#include "src/base/status_macros.h"
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

// The tensor with the parameter's fp32 weights: its master weights, if it has some.
absl::StatusOr<TensorSpec> FindWeights(TensorReader& reader,
                                       const trainer::ParameterShape& parameter) {
  for (const std::string& name : {parameter.name + "/master", parameter.name}) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<TensorSpec> spec, reader.Find(name));
    if (!spec) continue;
    if (spec->dtype == DType::kF32 && spec->shape == parameter.shape) return *std::move(spec);
    return absl::DataLossError(
        absl::StrFormat("tensor '%s' is not what the model's configuration says", name));
  }
  return absl::DataLossError(absl::StrFormat("the commit has no tensor '%s'", parameter.name));
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
      return consume(bytes);
    });
  };
  return trainer::ExportWeights(trainer::ListParameters(config), weights, config.json,
                                request.model, request.save);
}

}  // namespace spillway::command
