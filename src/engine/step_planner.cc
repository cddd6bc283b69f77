// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/bounds.h"

namespace spillway::engine {

void StepPlanner::AddTile(TileIndex index, double now) {
  if (service_ == nullptr) return;
  const Tile& tile = tiles_[index];
  recorder_.AddTile(TileOfTrace(tile, /*has_bytes=*/false, /*all_fit=*/false));
  frames_bytes_ += base::RoundUp(tile.size_bytes, options_.frame_alignment);
  rests_on_device_ |= tile.rest == Tier::kDevice;
  recorder_.Begin(now);
  is_too_long_ = false;
}

plan::StepRecorder* StepPlanner::Recording() {
  if (service_ == nullptr || !CanPlan() || is_too_long_) return nullptr;
  if (recorder_.num_events() < MostEvents()) return &recorder_;
  service_->Free(std::make_shared<plan::EventLog>(recorder_.End({})));
  service_->Free(std::exchange(last_events_, nullptr));
  last_ = 0;
  is_too_long_ = true;
  return nullptr;
}

absl::Status StepPlanner::NeedsStore() const {
  constexpr char kFix[] = "give a store folder, or ";
  if (rests_on_device_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("without a store, no step is planned while a role rests on the device: ", kFix,
                     "place the role elsewhere (EngineOptions::placement)"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "without a store, steps are planned only if pinned memory has room for all tiles, those of "
      "unregistered tensors included: they take ",
      base::FormatBytes(frames_bytes_), ", and pinned_bytes is ",
      base::FormatBytes(options_.pinned_bytes), ": ", kFix, "raise pinned_bytes to ", frames_bytes_,
      " bytes"));
}

// Returns the step that came most often after `last`. If none has followed it yet, returns the step
// that was seen most often of all, or `last` itself if none was seen more often.
uint64_t StepPlanner::Expected(uint64_t last) const {
  const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
  const Known& step = known_.at(last);
  if (!step.followed_by.empty())
    return std::max_element(step.followed_by.begin(), step.followed_by.end(), by_count)->first;
  const auto by_seen = [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; };
  const auto usual = std::max_element(known_.begin(), known_.end(), by_seen);
  return usual->second.seen > step.seen ? usual->first : last;
}

absl::Status StepPlanner::EndStep(double now) {
  for (std::shared_ptr<const void>& left : std::exchange(left_, {}))
    service_->Free(std::move(left));
  const uint64_t fingerprint = recorder_.fingerprint();
  const int64_t num_leases = recorder_.num_leases();
  const bool is_empty = is_between_steps();
  if (!is_empty) {
    TakeEvents();
    if (num_leases == 0 && !is_too_long_ && !IsKnown(fingerprint)) Learn(fingerprint);
  }
  recorder_.Begin(now);
  if (!CanPlan()) {
    last_ = expected_ = 0;
    return NeedsStore();
  }
  if (is_empty) return absl::OkStatus();
  const uint64_t before = std::exchange(last_, 0);
  expected_ = 0;
  if (std::exchange(is_too_long_, false)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "more than ", MostEvents(), " leases and releases since the last EndStep (", kEventsATile,
        " for each of ", tiles_.size(), " tiles, and ", kMoreEvents, ", but at most ", kMostEvents,
        ") are not written down. There are fewer with larger tiles, and where EndStep is "
        "called more often"));
  }
  if (num_leases != 0) {
    return absl::InvalidArgumentError(
        num_leases > 0
            ? absl::StrCat(base::FormatCount(num_leases, "lease"),
                           " held at EndStep: a step that is planned ends with none")
            : absl::StrCat(base::FormatCount(-num_leases, "lease"),
                           " of the step before ended in this one: a step that is planned ends "
                           "with none held"));
  }
  ++known_.at(fingerprint).seen;
  if (const auto it = known_.find(before); it != known_.end())
    ++it->second.followed_by[fingerprint];
  last_ = fingerprint;
  expected_ = Expected(fingerprint);
  return absl::OkStatus();
}

// Takes the events of the step that has just ended. Reuses the log of the step before, unless it
// has another owner.
void StepPlanner::TakeEvents() {
  plan::EventLog log;
  if (last_events_ != nullptr && last_events_.use_count() == 1) log = last_events_->Take();
  last_events_ = std::make_shared<StepEvents>(recorder_.End(std::move(log)));
}

// Whether the step is known. A step whose events could not happen may have begun while leases of
// another step were held, so it is learned anew.
bool StepPlanner::IsKnown(uint64_t fingerprint) const {
  const auto known = known_.find(fingerprint);
  return known != known_.end() && !absl::IsInvalidArgument(known->second.failure);
}

void StepPlanner::Learn(uint64_t fingerprint) {
  if (known_.size() == kMostSteps && known_.count(fingerprint) == 0)
    left_.push_back(std::make_shared<decltype(known_)>(std::exchange(known_, {})));
  Known& step = known_[fingerprint];
  step.events = last_events_;
  step.used = recorder_.used();
  step.request = 0;
}

// Has the step's plan made anew if the tiles are not as the plan assumes.
void StepPlanner::Update(Known* step, const TilesNow& tiles) {
  const bool is_same = step->request != 0 && step->reserved_changes == tiles.reserved_changes &&
                       step->all_fit == tiles.all_fit &&
                       !plan::TileBits::Differ(step->with_bytes, tiles.with_bytes, step->used);
  if (is_same) return;
  step->num_tiles = tiles_.size();
  step->with_bytes = tiles.with_bytes;
  step->reserved_changes = tiles.reserved_changes;
  step->all_fit = tiles.all_fit;
  step->request = 0;
}

PlanService::TraceMaker StepPlanner::TraceOf(const Known& step) const {
  return [&tiles = tiles_, size = step.num_tiles, events = step.events,
          with_bytes = step.with_bytes, all_fit = step.all_fit] {
    plan::Trace trace;
    trace.tiles.reserve(size);
    for (TileIndex tile = 0; tile < size; ++tile)
      trace.tiles.push_back(TileOfTrace(tiles[tile], with_bytes[tile], all_fit));
    trace.events = events->Read([](const plan::EventLog& log) { return log.Events(); });
    return trace;
  };
}

absl::StatusOr<std::shared_ptr<PlanFollower>> StepPlanner::Next(const TilesNow& tiles) {
  TakeMade();
  const auto found = known_.find(expected_);
  if (found == known_.end()) return nullptr;
  Known& next = found->second;
  Update(&next, tiles);
  if (next.request == 0) {
    next.failure = absl::OkStatus();
    if (service_->is_busy()) return nullptr;
    SPILLWAY_RETURN_IF_ERROR(service_->Make(TraceOf(next)));
    next.request = ++requests_;
  }
  if (absl::IsUnavailable(next.failure)) next.request = 0;  // the next call tries again
  SPILLWAY_RETURN_IF_ERROR(next.failure);
  return next.plan_request == next.request ? next.plan : nullptr;
}

// Takes the plan that was made, if any. A plan is not used if its step has changed since it was
// requested.
void StepPlanner::TakeMade() {
  std::optional<PlanService::Made> made = service_->Take();
  if (!made) return;
  ++plans_made_;
  for (auto& [fingerprint, step] : known_) {
    if (step.request != requests_) continue;
    step.failure = made->status();
    left_.push_back(std::exchange(step.plan, made->ok() ? **std::move(made) : nullptr));
    step.plan_request = requests_;
    return;
  }
  if (made->ok()) left_.push_back(**std::move(made));
}

StepPlanner::LastStep StepPlanner::last_step() const {
  if (last_ == 0) return {};
  return {.events = last_events_, .plan = known_.at(last_).plan};
}

TimeBound StepPlanner::LastStep::At(const plan::Rates& rates) const {
  if (plan == nullptr) return {};
  const plan::SecondsBound& bound = plan->Bound();
  const std::vector<double> computing =
      events->Read([](const plan::EventLog& log) { return plan::SecondsBound::Computing(log); });
  return {.seconds = bound.Seconds(computing, rates),
          .computing = std::accumulate(computing.begin(), computing.end(), 0.0),
          .transfers = bound.Transfers(rates)};
}

}  // namespace spillway::engine
