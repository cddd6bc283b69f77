// SPDX-License-Identifier: Apache-2.0

#include "src/engine/step_planner.h"

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/status_macros.h"

namespace spillway::engine {

void StepPlanner::AddTile(const plan::TraceTile& tile, double now) {
  recorder_.AddTile(tile);
  frames_bytes_ += base::RoundUp(tile.size_bytes, options_.frame_alignment);
  recorder_.Begin(now);
  known_.clear();  // they are of fewer tiles
  last_ = 0;
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
    double now, const std::function<bool(plan::TileIndex)>& has_bytes) {
  plan::Trace trace = recorder_.End();
  recorder_.Begin(now);
  if (trace.events.empty() || frames_bytes_ <= options_.pinned_bytes) return nullptr;
  SPILLWAY_RETURN_IF_ERROR(plan::Validate(trace));
  const uint64_t fingerprint = plan::Fingerprint(trace);
  if (known_.size() == kMostSteps && known_.count(fingerprint) == 0) {
    known_.clear();
    last_ = 0;
  }
  Known& step = known_[fingerprint];
  step.trace = std::move(trace);
  ++step.seen;
  if (last_ != 0) ++known_.at(last_).followed_by[fingerprint];
  last_ = fingerprint;

  Known& next = Expected(fingerprint);
  bool as_before = next.plan != nullptr;
  for (plan::TileIndex tile = 0; tile < next.trace.tiles.size(); ++tile) {
    next.trace.tiles[tile].stored = has_bytes(tile);
    as_before = as_before && next.plan->trace.tiles[tile].stored == next.trace.tiles[tile].stored;
  }
  if (as_before) return next.plan;
  SPILLWAY_ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(next.trace, options_));
  const plan::BytesBound bound = plan::BoundBytes(next.trace, options_, plan.bytes);
  ++plans_made_;
  next.plan = std::make_shared<const StepPlan>(StepPlan{next.trace, std::move(plan), bound});
  return next.plan;
}

}  // namespace spillway::engine
