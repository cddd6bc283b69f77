// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/state_conversion.h"

#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/store/store_view.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/state_conversion.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/trainer/converter.h"

namespace spillway::command {
namespace {

using trainer::TrainState;

// The state of the last commit; none: there is none, or no store yet.
absl::StatusOr<std::optional<TrainState>> LastState(const EngineFlags& flags) {
  const auto view = io::StoreView::Open(flags.store, io::StoreView::Wanted::kAnyState);
  if (absl::IsNotFound(view.status())) return std::nullopt;
  SPILLWAY_RETURN_IF_ERROR(view.status());
  SPILLWAY_ASSIGN_OR_RETURN(const auto commit, (*view)->catalog().ReadCommit());
  if (!commit) return std::nullopt;
  SPILLWAY_ASSIGN_OR_RETURN(TrainState state, trainer::ParseTrainState(commit->user_state));
  return std::optional(std::move(state));
}

std::string Word(StateFormat format) { return std::string(Name(format)); }

// " by 0.9%" of what there was in the mean, or that nothing was lost.
std::string Describe(const ValueChange& change) {
  if (change.difference == 0) return "not at all";
  return absl::StrFormat("by %.2g%% in the mean", 100 * change.difference / change.magnitude);
}

std::string Describe(const Rule& rule, StateFormat from, StateFormat to,
                     const StateChange& change) {
  std::string text = absl::StrFormat(
      "converted the optimizer state from %s to %s, as a commit of its own: master weights "
      "changed %s",
      Word(from), Word(to), Describe(change.master));
  // The names of the moments are those of any weight's.
  const auto specs = StateSpecs(rule, StateFormat::kF32, {.name = "w", .shape = {1}});
  for (size_t m = 0; specs.ok() && m < specs->size(); ++m) {
    absl::StrAppend(&text, ", ", (*specs)[m].name.substr(2), " ", Describe(change.moments[m]));
  }
  return text;
}

}  // namespace

absl::Status ConvertStore(const TrainFlags& flags, const hf::ModelConfig& config,
                          const StoreNeed& need, const std::vector<trainer::FixedFlag>& given,
                          const std::atomic<bool>& stop) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TrainState> state, LastState(flags.engine));
  if (!state) return absl::OkStatus();  // the run begins, in the format that is asked for
  const trainer::ModelOptions& options = flags.trainer.model;
  const StateFormat to = options.state_format;
  SPILLWAY_ASSIGN_OR_RETURN(const StateFormat from, trainer::FormatOf(state->fixed));
  if (from == to) {
    absl::FPrintF(stderr, "note: the optimizer state is in %s already: nothing is converted\n",
                  Word(to));
    return absl::OkStatus();
  }
  const absl::Status same = trainer::CheckSameNumbers(trainer::WithFormat(state->fixed, to), given);
  if (!same.ok()) return WithExitCode(same, ExitCode::kUsage);
  EngineFlags alone = flags.engine;  // no step follows
  alone.placement = {};
  alone.policy = std::nullopt;
  alone.calibrate = CalibrateChoice::kOff;
  alone.timeline_events = 0;
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                            OpenEngine(alone, OpenMode::kOpenOrCreate, need, stop));
  const auto change = trainer::ConvertRun(engine.get(), config, options, *state, stop);
  if (!change.ok()) return WithRoomMissing(change.status(), PlaceOf(flags.engine), need);
  absl::FPrintF(stderr, "note: %s\n", Describe(options.rule, from, to, *change));
  return absl::OkStatus();
}

}  // namespace spillway::command
