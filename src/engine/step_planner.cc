// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <algorithm>
#include <future>
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
  known_.clear();  // they are of fewer tiles
  last_ = 0;
}

plan::TraceRecorder* StepPlanner::Recording() {
  const bool all_at_home = frames_bytes_ <= options_.pinned_bytes && !rests_on_device_;
  if (is_too_long_ || (!options_.has_store && !all_at_home)) return nullptr;
  if (recorder_.num_events() < MostEvents()) return &recorder_;
  (void)recorder_.End();  // gives its memory back
  is_too_long_ = true;
  return nullptr;
}

// What came most often after the step; of one that is new, the step that came most often of all, or
// itself.
StepPlanner::Known& StepPlanner::Expected(uint64_t last) {
  const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
  Known& step = known_.at(last);
  if (!step.followed_by.empty()) {
    return known_.at(
        std::max_element(step.followed_by.begin(), step.followed_by.end(), by_count)->first);
  }
  const auto by_seen = [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; };
  Known& usual = std::max_element(known_.begin(), known_.end(), by_seen)->second;
  return usual.seen > step.seen ? usual : step;
}

absl::StatusOr<std::shared_ptr<const StepPlan>> StepPlanner::EndStep(
    double now, const std::function<plan::TileNow(plan::TileIndex)>& tile_now) {
  plan::Trace trace = recorder_.End();
  recorder_.Begin(now);
  if (trace.events.empty() && !is_too_long_) return nullptr;
  const uint64_t before = std::exchange(last_, 0);
  if (std::exchange(is_too_long_, false)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", MostEvents(), " leases and releases since the last EndStep (",
                     kEventsATile, " for each of ", num_tiles_, " tiles, and ", kMoreEvents,
                     ") are not written down: call EndStep after each step; if one step has more, "
                     "give it fewer micro-batches, or take all of them through a layer before the "
                     "next (train --accumulation-order layer)"));
  }
  SPILLWAY_RETURN_IF_ERROR(plan::Validate(trace));
  const uint64_t fingerprint = plan::Fingerprint(trace);
  if (known_.size() == kMostSteps && known_.count(fingerprint) == 0) known_.clear();
  Known& step = known_[fingerprint];
  step.computing = plan::SecondsBound::Computing(trace);
  if (++step.seen == 1) step.trace = std::move(trace);
  if (const auto it = known_.find(before); it != known_.end())
    ++it->second.followed_by[fingerprint];
  last_ = fingerprint;

  Known& next = Expected(fingerprint);
  for (plan::TileIndex tile = 0; tile < next.trace.tiles.size(); ++tile) {
    plan::TraceTile& known = next.trace.tiles[tile];
    const plan::TileNow is = tile_now(tile);
    if (is == plan::TileNow{known.stored, known.home}) continue;
    known.stored = is.stored;
    known.home = is.home;
    next.is_planned = false;
  }
  if (!std::exchange(next.is_planned, true)) next.failure = MakePlan(&next);
  SPILLWAY_RETURN_IF_ERROR(next.failure);
  return next.plan;
}

TimeBound StepPlanner::BoundTime(const plan::Rates& rates) const {
  if (last_ == 0) return {};
  const Known& step = known_.at(last_);
  if (!step.bound) return {};
  return {.seconds = step.bound->Seconds(step.computing, rates),
          .computing = std::accumulate(step.computing.begin(), step.computing.end(), 0.0),
          .transfers = step.bound->Transfers(rates)};
}

absl::Status StepPlanner::MakePlan(Known* step) {
  // The bounds take half as long as the plan: beside it, or after it where no thread is to be had.
  auto bounding = std::async(std::launch::async | std::launch::deferred, [this, step] {
    const plan::BytesBound bytes = plan::BoundBytes(step->trace, options_);
    return std::pair(bytes, plan::SecondsBound(step->trace, options_, bytes));
  });
  SPILLWAY_ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(step->trace, options_));
  auto [bytes, seconds] = bounding.get();
  ++plans_made_;
  step->bound = std::move(seconds);
  step->plan = std::make_shared<const StepPlan>(StepPlan{step->trace, std::move(plan), bytes});
  return absl::OkStatus();
}

}  // namespace spillway::engine
