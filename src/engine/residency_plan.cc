// SPDX-License-Identifier: Apache-2.0
//
// Following a plan. First tiles go where the plan's period begins: what is elsewhere leaves
// (kClearing), what is missing comes (kFilling). From then on (kOn) each link takes the plan's
// operations in their order, each as soon as what it waits for is over; a lease is granted when
// what the plan does with its tile before is. Nothing here looks for room: the plan has a place for
// every frame. Where something is not as the plan has it, it is left, and nothing is lost: any
// state of the tiles is one from which to go on on demand.

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

// On their way at a time, of each link: enough to keep it busy while one ends.
constexpr int kMostInFlight = 16;
// A copy that leaves may send others away, which then have to leave or come back.
constexpr int kMostClearings = 8;
// In the place of a link: operations that none carries, and those on the way into the period.
constexpr int kNoLink = plan::kNumLinks;
constexpr int kEntry = -1;

}  // namespace

void Residency::FollowPlan(std::shared_ptr<const StepPlan> step) {
  SPILLWAY_CHECK(!in_use());
  LeavePlan(/*deviated=*/false);
  if (!leases_.CloseAll()) return;
  stats_.plan.planned_bytes = step->plan.bytes.total();
  stats_.plan.bytes_bound = step->bound.total();
  stats_.plan.nvme_bytes_bound = step->bound.nvme;
  following_.emplace(Following{.number = ++num_followings_, .follower = PlanFollower(step)});
}

void Residency::LeavePlan(bool deviated) {
  if (!following_) return;
  if (deviated) ++stats_.plan.deviations;
  following_.reset();
  for (Job& job : acquires_) job.event.reset();
}

// --- What callers do ---

std::optional<PlanFollower::Count> Residency::Match(plan::TraceEvent::Kind kind, TileIndex tile,
                                                    Tier tier, Access access) {
  if (!following_) return std::nullopt;
  const auto event =
      following_->follower.Match({.tile = tile, .kind = kind, .tier = tier, .access = access});
  if (!event) LeavePlan(/*deviated=*/true);
  return event;
}

bool Residency::PlanLetsIn(const Ended& ended) const {
  return following_->stage == Following::Stage::kOn && ended.release &&
         following_->follower.IsReadNext(*ended.release);
}

void Residency::EventHappened(std::optional<PlanFollower::Count> event) {
  if (event && following_) following_->follower.Happened(*event);
}

std::optional<PlanFollower::Count> Residency::EndPlannedDrain(TileIndex tile, Tier tier) {
  if (!following_) return std::nullopt;
  auto& draining = following_->draining;
  const auto found = std::find_if(draining.begin(), draining.end(), [&](const auto& entry) {
    return std::get<0>(entry) == tile && std::get<1>(entry) == tier;
  });
  if (found == draining.end()) return std::nullopt;  // its release came before the plan
  const PlanFollower::Count release = std::get<2>(*found);
  draining.erase(found);
  return release;
}

Residency::Outcome Residency::AdvancePlannedAcquire(Job& job) {
  if (following_->stage != Following::Stage::kOn) return Outcome::kWaiting;
  Tile& tile = tiles_[job.tile];
  Copy& target = copy(tile, job.tier);
  if (!CanLease(job) || target.leaving) return Outcome::kWaiting;
  const bool in_transfer = tile.transfer != Transfer::kNone;
  if (!following_->follower.IsReady(*job.event)) {
    // A stream can wait for the copy itself.
    const bool arrives = tile.transfer == Transfer::kCopyIn && tile.planned &&
                         tile.planned->following == following_->number &&
                         following_->follower.IsLast(tile.planned->op, *job.event);
    if (job.stream == kNoStream || job.tier != Tier::kDevice || !arrives) return Outcome::kWaiting;
    Grant(job, /*after_copy=*/true);
    return Outcome::kDone;
  }
  if (in_transfer && (Writes(job.access) || target.state != Copy::State::kReady))
    return Outcome::kWaiting;
  if (target.state == Copy::State::kHeld && job.access == Access::kDiscard) SetReady(target);
  if (target.state != Copy::State::kReady) {
    LeavePlan(/*deviated=*/true);  // the plan has it there, and it is not
    return Outcome::kProgress;
  }
  Grant(job, /*after_copy=*/false);
  return Outcome::kDone;
}

// --- What moves ---

bool Residency::AdvancePlan() {
  switch (following_->stage) {
    case Following::Stage::kClearing: return AdvanceClearing();
    case Following::Stage::kFilling: return AdvanceFilling();
    case Following::Stage::kOn: break;
  }
  bool progress = false;
  for (int link = 0; link < plan::kNumLinks && following_; ++link)
    progress |= AdvanceLink(static_cast<plan::Link>(link));
  if (following_) progress |= AdvanceFree();
  if (following_) {
    if (const auto moved = following_->follower.TakeMoved()) {
      ++stats_.plan.steps;
      stats_.plan.nvme = {(*moved)[plan::Link::kRead], (*moved)[plan::Link::kWrite]};
      stats_.plan.pinned = {(*moved)[plan::Link::kCopyIn], (*moved)[plan::Link::kCopyOut]};
    }
  }
  return progress;
}

bool Residency::AdvanceLink(plan::Link link) {
  bool progress = false;
  Following& following = *following_;
  int& in_flight = following.in_flight[static_cast<size_t>(link)];
  while (in_flight < kMostInFlight) {
    const auto next = following.follower.Next(link);
    if (!next) break;
    const plan::Op& op = following.follower.OpAt(*next);
    switch (TryOp(op, Planned{following.number, static_cast<int>(link), *next})) {
      case Step::kWaiting: return progress;
      case Step::kImpossible: LeavePlan(/*deviated=*/true); return true;
      case Step::kDone:
        following.follower.Begin(link);
        following.follower.End(*next);
        break;
      case Step::kStarted:
        following.follower.Begin(link);
        ++in_flight;
        if (tiles_[op.tile].transfer != Transfer::kZero)
          following.follower.CountMoved(*next, tiles_[op.tile].size_bytes);
        break;
    }
    progress = true;
  }
  return progress;
}

bool Residency::AdvanceFree() {
  bool progress = false;
  PlanFollower& follower = following_->follower;
  std::vector<PlanFollower::Count> waiting;
  while (const auto next = follower.TakeFree()) {
    switch (TryOp(follower.OpAt(*next), Planned{following_->number, kNoLink, *next})) {
      case Step::kWaiting: waiting.push_back(*next); continue;
      case Step::kImpossible: LeavePlan(/*deviated=*/true); return true;
      case Step::kDone: follower.End(*next); break;
      case Step::kStarted: break;  // filling with zeros
    }
    progress = true;
  }
  for (const PlanFollower::Count op : waiting) follower.PutBack(op);
  return progress;
}

void Residency::PlannedTransferDone(const Planned& planned, const absl::Status& status) {
  if (!following_ || following_->number != planned.following) return;
  if (!status.ok()) return LeavePlan(/*deviated=*/true);
  if (planned.link == kEntry) return;
  if (planned.link != kNoLink) --following_->in_flight[static_cast<size_t>(planned.link)];
  following_->follower.End(planned.op);
}

bool Residency::TakeFrameAt(TileIndex index, Tier tier, uint64_t offset) {
  Tile& tile = tiles_[index];
  Copy& target = copy(tile, tier);
  if (target.state == Copy::State::kHeld && target.offset == offset) return true;
  if (target.state == Copy::State::kHeld) DropFrame(index, tier);
  if (target.state != Copy::State::kNone) return false;
  if (!arenas_[At(tier)].AllocateAt(offset, FrameBytes(tile), index)) return false;
  target.state = Copy::State::kHeld;
  target.offset = offset;
  Count(index, tier, true);
  return true;
}

// Does what the operation says, as far as it still has to be done: a commit may have written a tile
// already, the caller may have discarded it, and bytes that were never written are zeros.
Residency::Step Residency::TryOp(const plan::Op& op, const Planned& planned) {
  Tile& tile = tiles_[op.tile];
  if (tile.transfer != Transfer::kNone || tile.discard) return Step::kWaiting;
  const bool in_pinned = Ready(tile, Tier::kPinned), on_device = Ready(tile, Tier::kDevice);
  const auto start = [&](Transfer transfer) {
    tile.planned = planned;
    const MoveReason reason = transfer == Transfer::kWrite     ? MoveReason::kWriteBehind
                              : transfer == Transfer::kCopyOut ? MoveReason::kMakeRoom
                                                               : MoveReason::kAhead;
    StartTransfer(op.tile, transfer, reason);
    return Step::kStarted;
  };
  switch (op.kind) {
    case plan::Op::Kind::kRead:
    case plan::Op::Kind::kZero:
      if (in_pinned) return Step::kDone;
      if (IsWritten(op.tile) || (!tile.stored && !tile.zero && !on_device))
        return Step::kImpossible;
      if (!TakeFrameAt(op.tile, Tier::kPinned, op.offset)) return Step::kImpossible;
      return start(on_device     ? Transfer::kCopyOut
                   : tile.stored ? Transfer::kRead
                                 : Transfer::kZero);
    case plan::Op::Kind::kWrite:
      if (tile.stored || tile.zero) return Step::kDone;
      if (IsWritten(op.tile) || !in_pinned) return Step::kImpossible;
      return start(Transfer::kWrite);
    case plan::Op::Kind::kCopyIn:
      if (on_device || (!in_pinned && tile.zero)) return Step::kDone;
      if (!in_pinned || !TakeFrameAt(op.tile, Tier::kDevice, op.offset)) return Step::kImpossible;
      return start(Transfer::kCopyIn);
    case plan::Op::Kind::kCopyOut:
      if (in_pinned || (!on_device && tile.zero)) return Step::kDone;
      if (!on_device || !TakeFrameAt(op.tile, Tier::kPinned, op.offset)) return Step::kImpossible;
      return start(Transfer::kCopyOut);
    case plan::Op::Kind::kTake:
      if (Ready(tile, op.tier)) return Step::kDone;
      return TakeFrameAt(op.tile, op.tier, op.offset) ? Step::kDone : Step::kImpossible;
    case plan::Op::Kind::kDrop: {
      const Copy& held = copy(tile, op.tier);
      if (held.state == Copy::State::kNone) return Step::kDone;
      if (held.leaving || held.state == Copy::State::kClaiming) return Step::kImpossible;
      LeaseCount& leases = leases_.count(op.tile, op.tier);
      // A stream may still read for a lease that was released before the one the plan waits for.
      if (!leases.Close())
        return leases.leases() == held.draining ? Step::kWaiting : Step::kImpossible;
      const bool elsewhere = tile.stored || tile.zero || held.state == Copy::State::kHeld ||
                             (op.tier == Tier::kDevice ? in_pinned : on_device);
      if (!elsewhere) return Step::kImpossible;
      DropFrame(op.tile, op.tier);
      return Step::kDone;
    }
  }
  return Step::kImpossible;
}

// --- The way into the period ---

bool Residency::AdvanceClearing() {
  if (transfers_ > 0 || !claims_.empty()) return false;
  if (!evictions_.empty() || !flushes_.empty() || !prefetches_.empty()) return false;
  std::vector<plan::Place> now;
  for (TileIndex index = 0; index < tiles_.size(); ++index) {
    for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
      const Copy& held = copy(tiles_[index], tier);
      if (held.state == Copy::State::kReady) now.push_back({index, tier, held.offset});
      if (held.state == Copy::State::kHeld) DropFrame(index, tier);
    }
  }
  const StepPlan& step = *following_->follower.step();
  plan::Entry entry = plan::EnterPlan(step.plan, step.trace, now);
  if (entry.leave.empty()) {
    following_->entry.assign(entry.ops.begin(), entry.ops.end());
    following_->stage = Following::Stage::kFilling;
    return true;
  }
  // What cannot be written now could not be in the plan either.
  if (writes_failing_ || ++following_->clearings > kMostClearings) {
    LeavePlan(/*deviated=*/true);
    return true;
  }
  for (const plan::Place& place : entry.leave) {
    copy(tiles_[place.tile], place.tier).leaving = true;
    AddJob(evictions_, Job::Kind::kEvict, place.tile, place.tier).sinks =
        !HasOwnPlace(tiles_[place.tile]);
  }
  return true;
}

bool Residency::AdvanceFilling() {
  bool progress = false;
  while (!following_->entry.empty() && transfers_ < kMostInFlight) {
    const plan::Op& op = following_->entry.front();
    Step step = TryOp(op, Planned{following_->number, kEntry, 0});
    // The frame may be another's staging, which is dropped in a moment.
    if (step == Step::kImpossible && transfers_ > 0) step = Step::kWaiting;
    if (step == Step::kWaiting) return progress;
    if (step == Step::kImpossible) {
      LeavePlan(/*deviated=*/true);
      return true;
    }
    following_->entry.pop_front();
    progress = true;
  }
  if (!following_->entry.empty() || transfers_ > 0) return progress;
  following_->stage = Following::Stage::kOn;
  return true;
}

}  // namespace spillway::engine
