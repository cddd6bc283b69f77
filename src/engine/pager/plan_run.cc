// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/plan_run.h"

#include <utility>

#include "src/base/check.h"

namespace spillway::engine {

void PlanRun::Follow(std::shared_ptr<PlanFollower> plan) {
  SPILLWAY_CHECK(pages_.leases().num_held() == 0 && jobs_.of(Job::Kind::kAcquire).empty());
  Abandon(/*deviated=*/false);
  ++number_;
  moved_ = {};
  has_ended_step_ = false;
  frames_.emplace(std::move(plan), &pages_, &jobs_);
  moves_.emplace(number_, &*frames_, &pages_, &transfers_);
  room_.SetPlan(&*frames_);
}

// This is where a plan is abandoned.
void PlanRun::Abandon(bool deviated) {
  if (!frames_) return;
  if (deviated) ++pages_.stats().plan.deviations;
  room_.SetPlan(nullptr);
  moves_.reset();
  frames_.reset();
  discards_.clear();
  for (Job& job : jobs_.of(Job::Kind::kAcquire)) job.use.reset();
}

void PlanRun::EndStep() {
  if (frames_ && !frames_->follower().HasBegunStep()) return;
  has_ended_step_ = frames_ && frames_->follower().EndStep();
  if (frames_ && !has_ended_step_) Abandon(/*deviated=*/true);
  PlanStats& stats = pages_.stats().plan;
  last_followed_ = frames_ ? frames_->plan() : nullptr;
  stats.planned_bytes = last_followed_ ? last_followed_->step().plan.bytes.total() : 0;
  stats.nvme = stats.pinned = {};
  CountMoved();
}

void PlanRun::CountMoved() {
  if (!frames_) return;
  PlanStats& stats = pages_.stats().plan;
  while (const auto moved = frames_->follower().TakeMoved()) {
    ++stats.steps;
    moved_ = *moved;
  }
  if (!has_ended_step_) return;
  stats.nvme = {moved_[plan::Transfer::kRead], moved_[plan::Transfer::kWrite]};
  stats.pinned = {moved_[plan::Transfer::kCopyIn], moved_[plan::Transfer::kCopyOut]};
}

// --- What callers do ---

std::optional<PlanFollower::Count> PlanRun::Ask(const plan::TraceEvent& use) {
  if (!frames_) return std::nullopt;
  PlanFollower& follower = frames_->follower();
  const auto number = follower.Ask(use);
  if (!number && follower.IsAnotherStep()) Abandon(/*deviated=*/true);
  return number;
}

void PlanRun::Granted(TileIndex tile) {
  if (FollowsUsesOf(tile)) frames_->follower().Happened(tile);
}

void PlanRun::DiscardAsked(TileIndex tile) {
  if (Ask({.tile = tile, .kind = plan::TraceEvent::Kind::kDiscard})) ++discards_[tile];
}

void PlanRun::Discarded(TileIndex tile) {
  if (!frames_) return;
  for (auto asked = discards_.extract(tile); asked && asked.mapped() > 0; --asked.mapped())
    Granted(tile);
}

// --- Leases that wait for the plan ---

PlanRun::Answer PlanRun::AdvanceAcquire(Job& job) {
  PlanFollower& follower = frames_->follower();
  Page& page = pages_[job.tile];
  Copy& target = page.copy(job.tier);
  if (!pages_.CanLease(job) || target.leaving) return Answer::kWaiting;
  if (!follower.tiles().OpsBeforeAreOver(job.tile, *job.use)) {
    // A stream can wait for the copy by itself, so the lease is granted before the copy ends.
    const bool arrives = page.transfer == Transfer::kCopyIn && page.planned &&
                         page.planned->run == number_ && page.planned->op &&
                         follower.tiles().IsLastBefore(*page.planned->op, job.tile, *job.use);
    if (job.stream != kNoStream && job.tier == Tier::kDevice && arrives)
      return Answer::kGrantAfterCopy;
    if (follower.tiles().IsRunning(job.tile)) return Answer::kWaiting;
    // A reader joins the readers that hold the copy already.
    const bool is_shared =
        target.is_ready() && !Writes(job.access) && pages_.leases().HasHolder(job.tile, job.tier);
    if (is_shared) {
      follower.Skip(job.tile, *job.use);
    } else if (!frames_->lacks_frame() && follower.MayWait(job.tile, *job.use)) {
      return Answer::kWaiting;
    } else {
      Pull(job);
      return Answer::kPulled;
    }
  }
  if (page.is_moving() && (Writes(job.access) || !target.is_ready())) return Answer::kWaiting;
  if (target.state == Copy::State::kHeld && job.access == Access::kDiscard) target.SetReady();
  if (target.is_ready()) return Answer::kGrant;
  Pull(job);  // the copy had to leave after the operations ended
  return Answer::kPulled;
}

void PlanRun::Pull(Job& job) {
  frames_->follower().Skip(job.tile, *job.use);
  job.pulled = true;
  ++pages_.stats().plan.pulled;
}

void PlanRun::CountPulled(const Job& job, Transfer transfer) {
  if (!job.pulled || !job.use || transfer == Transfer::kZero) return;
  frames_->follower().CountPulled(job.tile, *job.use, transfer, pages_[job.tile].size_bytes());
}

// Copies that do not lie as planned can make the plan's operations block each other. If nothing
// moves for that reason, the waiting operations are tried again first, then a lease that waits for
// them is pulled. If there are operations that this run of the pump has not reached, for which the
// lease may wait, another run has to look at them first. Returns whether anything may have changed.
bool PlanRun::PullIfNothingMoves() {
  if (runs_again_ || transfers_.in_flight() > 0 || pages_.leases().num_draining() > 0) return false;
  for (Job& job : jobs_.of(Job::Kind::kAcquire)) {
    const bool waits = job.use && !job.pulled &&
                       !frames_->follower().tiles().OpsBeforeAreOver(job.tile, *job.use) &&
                       !pages_[job.tile].copy(job.tier).leaving && pages_.CanLease(job);
    if (!waits) continue;
    if (!std::exchange(has_tried_, true)) {
      moves_->TryAgain();
      return true;
    }
    if (RunAgainIfCut()) return false;
    Pull(job);
    has_tried_ = false;
    return true;
  }
  (void)RunAgainIfCut();  // no lease waits, but it may be long until the next event
  return false;
}

bool PlanRun::RunAgainIfCut() {
  runs_again_ = moves_->StoppedEarly();
  if (runs_again_) pages_.actions().push_back({.kind = Action::Kind::kRunAgain});
  return runs_again_;
}

// --- What moves ---

bool PlanRun::Advance() {
  const bool was_blocked = frames_->lacks_frame();
  bool progress = moves_->Advance();
  progress |= frames_->Settle();
  CountMoved();
  progress |= frames_->lacks_frame() && !was_blocked;
  return progress || PullIfNothingMoves();
}

void PlanRun::TransferEnded(TileIndex tile, const std::optional<PlannedOp>& planned) {
  if (!frames_) return;
  if (planned && planned->run == number_ && planned->op) frames_->follower().End(*planned->op);
  frames_->TileIsDone(tile);
}

}  // namespace spillway::engine
