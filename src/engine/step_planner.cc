// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::engine {

void StepPlanner::AddTile(const plan::TraceTile& tile, double now) {
  recorder_.AddTile(tile);
  ++num_tiles_;
  frames_bytes_ += base::RoundUp(tile.size_bytes, options_.frame_alignment);
  rests_on_device_ |= tile.rest == Tier::kDevice;
  recorder_.Begin(now);
  is_too_long_ = false;
  for (auto& [fingerprint, step] : known_) {
    step.trace.tiles.push_back(tile);
    step.is_used.push_back(false);
    if (tile.rest && *tile.rest != Tier::kNvme) step.request = 0;
  }
}

plan::TraceRecorder* StepPlanner::Recording() {
  const bool all_at_home = frames_bytes_ <= options_.pinned_bytes && !rests_on_device_;
  if (is_too_long_ || (!options_.has_store && !all_at_home)) return nullptr;
  if (recorder_.num_events() < MostEvents()) return &recorder_;
  std::vector<plan::TraceEvent>().swap(last_events_);  // gives memory back
  recorder_.End(&last_events_);
  std::vector<plan::TraceEvent>().swap(last_events_);
  is_too_long_ = true;
  return nullptr;
}

// What came most often after the step; of one that is new, the step that came most often of all, or
// itself.
uint64_t StepPlanner::Expected(uint64_t last) const {
  const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
  const Known& step = known_.at(last);
  if (!step.followed_by.empty())
    return std::max_element(step.followed_by.begin(), step.followed_by.end(), by_count)->first;
  const auto by_seen = [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; };
  const auto usual = std::max_element(known_.begin(), known_.end(), by_seen);
  return usual->second.seen > step.seen ? usual->first : last;
}

absl::Status StepPlanner::EndStep(double now, const TilesNow& tiles) {
  const uint64_t fingerprint = recorder_.fingerprint();
  const bool has_leases = recorder_.num_leases() != 0;
  const bool is_empty = is_between_steps();
  if (!is_empty) recorder_.End(&last_events_);
  recorder_.Begin(now);
  if (is_empty) return absl::OkStatus();
  const uint64_t before = std::exchange(last_, 0);
  expected_ = 0;
  if (std::exchange(is_too_long_, false)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", MostEvents(), " leases and releases since the last EndStep (",
                     kEventsATile, " for each of ", num_tiles_, " tiles, and ", kMoreEvents,
                     ") are not written down: call EndStep after each step; if one step has more, "
                     "use larger tiles, or lease each less often"));
  }
  const auto known = known_.find(fingerprint);
  if (known == known_.end() || has_leases) {
    plan::Trace trace{recorder_.tiles(), last_events_};
    SPILLWAY_RETURN_IF_ERROR(plan::Validate(trace));
    if (known_.size() == kMostSteps && known == known_.end()) known_.clear();
    Known& step = known_[fingerprint];
    step.is_used.assign(trace.tiles.size(), false);
    for (const plan::TraceEvent& event : trace.events) step.is_used[event.tile] = true;
    step.trace = std::move(trace);
  }
  ++known_.at(fingerprint).seen;
  if (const auto it = known_.find(before); it != known_.end())
    ++it->second.followed_by[fingerprint];
  last_ = fingerprint;
  expected_ = Expected(fingerprint);
  Update(&known_.at(expected_), tiles);
  return absl::OkStatus();
}

// A plan is of tiles that have bytes, or not, and lie where they do.
void StepPlanner::Update(Known* step, const TilesNow& tiles) {
  if (step->request != 0 && step->tiles_hash == tiles.hash) return;
  step->tiles_hash = tiles.hash;
  for (plan::TileIndex tile = 0; tile < step->trace.tiles.size(); ++tile) {
    plan::TraceTile& known = step->trace.tiles[tile];
    const plan::TileNow is = tiles.tile(tile);
    if (is == plan::TileNow{known.stored, known.home}) continue;
    known.stored = is.stored;
    known.home = is.home;
    if (step->is_used[tile] || known.rest) step->request = 0;
  }
}

absl::StatusOr<std::shared_ptr<const StepPlan>> StepPlanner::Next() {
  TakeMade();
  const auto found = known_.find(expected_);
  if (found == known_.end()) return nullptr;
  Known& next = found->second;
  if (next.request == 0) {
    next.plan = nullptr;
    next.failure = absl::OkStatus();
    if (service_->is_busy()) return nullptr;
    next.request = ++requests_;
    service_->Make(next.request, next.trace);
    TakeMade();  // where it was made at once
  }
  SPILLWAY_RETURN_IF_ERROR(next.failure);
  return next.plan;
}

// What was asked for a step that has become another since is not used.
void StepPlanner::TakeMade() {
  std::optional<PlanService::Made> made = service_->Take();
  if (!made) return;
  ++plans_made_;
  for (auto& [fingerprint, step] : known_) {
    if (step.request != made->request) continue;
    step.failure = made->plan.status();
    if (!made->plan.ok()) return;
    step.plan = *std::move(made->plan);
    step.bound = std::move(made->bound);
  }
}

TimeBound StepPlanner::BoundTime(const plan::Rates& rates) const {
  if (last_ == 0) return {};
  const Known& step = known_.at(last_);
  if (!step.bound) return {};
  const std::vector<double> computing = plan::SecondsBound::Computing(last_events_);
  return {.seconds = step.bound->Seconds(computing, rates),
          .computing = std::accumulate(computing.begin(), computing.end(), 0.0),
          .transfers = step.bound->Transfers(rates)};
}

}  // namespace spillway::engine
