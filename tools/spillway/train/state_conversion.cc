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
#include "tools/spillway/command/progress.h"
#include "tools/spillway/train/store_room.h"
#include "tools/trainer/converter.h"

namespace spillway::command {
namespace {

using trainer::TrainState;

// Returns the state of the store's last commit, even if another process has the store open. None if
// there is no commit or it cannot be read; OpenEngine reports what is wrong with the store.
std::optional<TrainState> LastState(const EngineFlags& flags) {
  const auto view = io::StoreView::Open(flags.store, io::StoreView::Wanted::kAnyState);
  if (!view.ok()) return std::nullopt;
  const auto commit = (*view)->catalog().ReadCommit();
  if (!commit.ok() || !commit->has_value()) return std::nullopt;
  auto state = trainer::ParseTrainState((*commit)->user_state);
  return state.ok() ? std::optional(*std::move(state)) : std::nullopt;
}

std::string Word(StateFormat format) { return std::string(Name(format)); }

// Returns "by 0.9% in the mean", relative to the values before, or "not at all".
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
  // The names of the moments do not depend on the weight.
  const auto specs = StateSpecs(rule, StateFormat::kF32, {.name = "w", .shape = {1}});
  for (size_t m = 0; specs.ok() && m < specs->size(); ++m) {
    absl::StrAppend(&text, ", ", (*specs)[m].name.substr(2), " ", Describe(change.moments[m]));
  }
  return text;
}

// Returns the format from which the state must be converted. None if it has the format of the flags
// already. UsageError if a flag other than the format differs from the state.
absl::StatusOr<std::optional<StateFormat>> FormatBefore(
    const TrainState& state, StateFormat to, const std::vector<trainer::FixedFlag>& given) {
  SPILLWAY_ASSIGN_OR_RETURN(const StateFormat from, trainer::FormatOf(state.fixed));
  if (from == to) return std::nullopt;
  const absl::Status same = trainer::CheckSameNumbers(trainer::WithFormat(state.fixed, to), given);
  if (!same.ok()) return WithExitCode(same, ExitCode::kUsage);
  return std::optional(from);
}

// Returns what the store must hold while it holds both states.
StoreNeed NeedOf(const hf::ModelConfig& config, const trainer::ModelOptions& options,
                 StateFormat from) {
  return {.state = trainer::ConversionBytes(config, options, from), .is_committed = true};
}

absl::Status CheckRoomFor(const StorePlace& place, const StoreNeed& need) {
  const absl::Status room = CheckStoreRoom(place, need);
  if (room.ok()) return room;
  return WithExitCode(
      absl::Status(room.code(),
                   absl::StrCat("--convert keeps the old state until the new one is committed: ",
                                std::string(room.message()))),
      ExitCodeOf(room));
}

}  // namespace

absl::Status ConvertStore(const TrainFlags& flags, const hf::ModelConfig& config,
                          const std::vector<trainer::FixedFlag>& given,
                          const std::atomic<bool>& stop) {
  const trainer::ModelOptions& options = flags.trainer.model;
  const StateFormat to = options.state_format;
  const StorePlace place = PlaceOf(flags.engine);
  const absl::Status nothing = absl::OkStatus();  // the run begins or goes on as it is
  const auto tell_already = [to] {
    absl::FPrintF(stderr, "note: the optimizer state is in %s already: nothing is converted\n",
                  Word(to));
  };
  // Reports every error that can be found before the store is opened.
  if (const auto state = LastState(flags.engine)) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto from, FormatBefore(*state, to, given));
    if (!from) {
      tell_already();
      return nothing;
    }
    SPILLWAY_RETURN_IF_ERROR(CheckRoomFor(place, NeedOf(config, options, *from)));
  }
  EngineFlags alone = flags.engine;  // no step follows
  alone.placement = {};
  alone.device = Device::Host();
  alone.plan_steps = false;
  alone.calibrate = CalibrateChoice::kOff;
  alone.timeline_events = 0;
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                            OpenEngine(alone, OpenMode::kOpenOrCreate, {}, stop));
  // Another process may have committed meanwhile, so the state is read again from the open store.
  const std::optional<std::string> text = engine->UserState();
  if (!text) return nothing;
  SPILLWAY_ASSIGN_OR_RETURN(const TrainState state, trainer::ParseTrainState(*text));
  SPILLWAY_ASSIGN_OR_RETURN(const auto from, FormatBefore(state, to, given));
  if (!from) {
    tell_already();
    return nothing;
  }
  Progress progress("converted");
  const auto change = trainer::ConvertRun(
      engine.get(), config, options, state, stop,
      [&](size_t done, size_t total) { progress.ShowCount(done, total, "parameters"); });
  progress.End();
  if (!change.ok()) return WithRoomMissing(change.status(), place, NeedOf(config, options, *from));
  absl::FPrintF(stderr, "note: %s\n", Describe(options.rule, *from, to, *change));
  return absl::OkStatus();
}

}  // namespace spillway::command
