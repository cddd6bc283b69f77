// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_follower.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/check.h"

namespace spillway::engine {

PlanFollower::PlanFollower(StepPlan step)
    : step_(std::move(step)),
      tiles_(step_),
      ready_(step_, tiles_),
      periods_(tiles_.index().num_moves) {}

const plan::SecondsBound& PlanFollower::Bound() const {
  std::call_once(bound_once_, [&] {
    const plan::PlanOptions& budgets = step_.plan.options;
    bound_.emplace(step_.trace, budgets, plan::BoundBytes(step_.trace, budgets));
  });
  return *bound_;
}

void PlanFollower::Restart() {
  tiles_.Restart();
  ready_.Restart();
  periods_.Restart();
  step_number_ = asked_ = extra_ = all_asked_before_ = 0;
  running_.clear();
  in_flight_ = {};
}

// --- What callers do ---

std::optional<PlanFollower::Count> PlanFollower::Ask(const plan::TraceEvent& event) {
  const std::optional<Count> use = tiles_.Ask(event, step_number_);
  ++(use ? asked_ : extra_);
  left_to_pass_ = most_passed_;
  LookAhead();
  return use;
}

void PlanFollower::Happened(TileIndex tile) {
  tiles_.Happened(tile);
  Consider(tile);
}

void PlanFollower::ReleaseAsked(TileIndex tile) {
  tiles_.ReleaseAsked(tile);
  left_to_pass_ = most_passed_;
  LookAhead();
}

void PlanFollower::Released(TileIndex tile) {
  tiles_.Released(tile);
  Consider(tile);
}

bool PlanFollower::IsAnotherStep() const {
  return extra_ > asked_ - step_number_ * tiles_.index().num_uses() + kFewExtra;
}

bool PlanFollower::EndStep() {
  if (extra_ > 0 || asked_ != (step_number_ + 1) * tiles_.index().num_uses()) return false;
  ++step_number_;
  return true;
}

// Advances past the events that have been asked for. After one caller was behind all others these
// may be many, and passing them all would take milliseconds under the lock; later runs of the pump
// pass the rest.
void PlanFollower::LookAhead() {
  for (; left_to_pass_ > 0 && tiles_.HasBeenAsked(all_asked_before_); --left_to_pass_)
    ++all_asked_before_;
}

// --- Leases ---

bool PlanFollower::MayWait(TileIndex tile, Count use) {
  LookAhead();
  return tiles_.HasOpDue(tile) || all_asked_before_ >= tiles_.index().EventOf(tile, use);
}

void PlanFollower::Skip(TileIndex tile, Count use) {
  SPILLWAY_CHECK(!tiles_.IsRunning(tile));
  while (!tiles_.OpsBeforeAreOver(tile, use)) {
    const Count op = tiles_.NextOp(tile);
    Started(op);
    Over(op);
  }
}

uint64_t PlanFollower::EventsUntilNextUse(TileIndex tile) const {
  const std::optional<Count> event = tiles_.NextUse(tile);
  if (!event) return std::numeric_limits<uint64_t>::max();
  return *event - std::min(*event, all_asked_before_);
}

// --- Operations ---

void PlanFollower::Begin(Count op) {
  tiles_.Begin(op);
  Started(op);
  if (!plan::HasLink(OpAt(op).kind)) return;
  running_.push_back(op);
  ++in_flight_[static_cast<size_t>(OpAt(op).kind)];
}

void PlanFollower::End(Count op) {
  if (!tiles_.IsRunning(OpAt(op).tile)) {
    Started(op);
  } else if (plan::HasLink(OpAt(op).kind)) {
    std::erase(running_, op);
    --in_flight_[static_cast<size_t>(OpAt(op).kind)];
  }
  Over(op);
}

// Called once for each operation: when it begins, or when it counts as over without having begun.
void PlanFollower::Started(Count op) {
  if (plan::HasLink(OpAt(op).kind)) periods_.Began(step_.PeriodOf(op));
}

void PlanFollower::Over(Count op) {
  tiles_.End(op);
  Consider(OpAt(op).tile);
  for (const uint32_t waiting : tiles_.index().WaitingFor(op % step_.plan.ops.size()))
    Consider(OpAt(waiting).tile);
}

void PlanFollower::Consider(TileIndex tile) {
  if (!tiles_.MakeDue(tile)) return;
  ++due_;
  PutBack(tiles_.NextOp(tile));
}

bool PlanFollower::IsRoomComing(Tier tier) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](Count op) { return tiles_.IsDroppedAfter(op, tier); });
}

}  // namespace spillway::engine
