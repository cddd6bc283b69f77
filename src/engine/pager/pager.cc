// SPDX-License-Identifier: Apache-2.0
//
// The pager's events and its pump. Leases are in pager_leases.cc.

#include "src/engine/pager/pager.h"

#include <utility>

#include "src/base/check.h"
#include "src/engine/pager/stall.h"

namespace spillway::engine {

TileIndex Pager::AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                         StorePlace place) {
  const bool did_fit = pages_.AllFit();
  const TileIndex tile = pages_.AddTile(size_bytes, role, transient, stored, place);
  // A plan may have frames where the tile will rest, or where all tiles have a place of their own.
  if (pages_[tile].tile->has_reserved_frame() || did_fit != pages_.AllFit()) AbandonPlan();
  plan_.AddTile();
  return tile;
}

// --- Events from callers ---

absl::Status Pager::Evict(TileIndex tile) {
  if (!pages_.leases().Close(tile)) {
    return absl::FailedPreconditionError(pages_.options().describe(tile) +
                                         " is leased: release its leases before Evict");
  }
  room_.Sink(tile);
  return absl::OkStatus();
}

absl::Status Pager::Discard(TileIndex tile) {
  if (!pages_.leases().Close(tile) && pages_.leases().HasHolder(tile)) {
    return absl::FailedPreconditionError(pages_.options().describe(tile) +
                                         " is leased: release its leases before Discard");
  }
  plan_.DiscardAsked(tile);
  pages_.Discard(tile);
  EndDiscard(tile);
  return absl::OkStatus();
}

// To be called whenever a discard may take effect.
void Pager::EndDiscard(TileIndex tile) {
  if (pages_.DropIfDiscarded(tile)) plan_.Discarded(tile);
}

absl::Status Pager::Forget(TileIndex first, TileIndex count) {
  for (TileIndex tile = first; tile < first + count; ++tile) {
    if (pages_.leases().Close(tile) && !jobs_.IsAwaited(tile)) continue;
    return absl::FailedPreconditionError(pages_.options().describe(tile) +
                                         " is leased: release its leases before Unregister");
  }
  AbandonPlan();
  uses_.Clear();
  for (TileIndex tile = first; tile < first + count; ++tile) {
    pages_[tile].is_gone = true;
    pages_.Discard(tile);
    EndDiscard(tile);
  }
  return absl::OkStatus();
}

bool Pager::Pause() {
  SPILLWAY_CHECK(!in_use());
  if (!pages_.leases().CloseAll()) return false;
  paused_ = true;
  AbandonPlan();
  uses_.Clear();
  return true;
}

// Nothing is in flight and nobody waits, so what jobs and claims there are were begun unasked and
// end here with the rooms that they were about.
void Pager::Reset(const std::function<bool(TileIndex)>& is_stored) {
  SPILLWAY_CHECK(!in_use() && pages_.transfers_in_flight() == 0);
  jobs_.Clear();
  room_.Reset();
  flush_.Reset();
  pages_.Reset(is_stored);
  paused_ = false;
}

void Pager::FollowPlan(std::shared_ptr<PlanFollower> plan) {
  SPILLWAY_CHECK(!in_use());
  plan_.Follow(std::move(plan));
}

absl::Status Pager::TakeWriteError() {
  absl::Status error = pages_.write_error();
  pages_.ClearWriteError();
  return error;
}

std::optional<Stall> Pager::WhyWaits(Ticket ticket) const {
  return engine::WhyWaits(pages_, jobs_, ticket);
}

// --- Events from the mover ---

void Pager::TransferDone(TileIndex tile, const absl::Status& status) {
  const PageTable::Ended ended = pages_.End(tile);
  if (!status.ok()) {
    if (ended.job != nullptr) ended.job->failure = status;
    const bool is_write = ended.transfer == Transfer::kWrite;
    if (is_write) pages_.StopUnaskedWrites();
    // Whoever needs what could not be brought in is told when that fails again; but of a lease
    // whose stream waits for the copy, nobody asks again.
    const bool is_streams = ended.transfer == Transfer::kCopyIn && ended.job == nullptr;
    if (is_write || ended.is_leased || (is_streams && !ended.planned)) pages_.SetWriteError(status);
    if (ended.transfer == Transfer::kCopyIn && absl::IsDataLoss(status)) DropLost(tile);
    EndDiscard(tile);
    plan_.Abandon(/*deviated=*/true);
    return;
  }
  pages_.Arrive(tile, ended);
  if (ended.transfer == Transfer::kCopyOut) flush_.MarkWritten(tile);
  EndDiscard(tile);
  plan_.TransferEnded(tile, ended.planned);
}

// The copy in pinned memory is not what was written. Whoever needs the tile next reads it again.
void Pager::DropLost(TileIndex tile) {
  const Page& page = pages_[tile];
  const bool may_go = page.stored && page.is_ready(Tier::kPinned) && !page.is_leaving();
  if (may_go && pages_.leases().Close(tile, Tier::kPinned)) pages_.DropFrame(tile, Tier::kPinned);
}

// --- The pump ---

std::vector<Action> Pager::TakeActions() {
  plan_.BeginPump();
  do {
    bool progress = true;
    while (progress) {
      progress = AdvanceAll(Job::Kind::kAcquire);
      progress |= AdvanceAll(Job::Kind::kEvict);
      flush_.AddJobs(IsPlanPaused() && pages_.transfers_in_flight() > 0);
      progress |= AdvanceAll(Job::Kind::kFlush);
      progress |= AdvanceAll(Job::Kind::kPrefetch);
      progress |= jobs_.TakeHasNew();
      if (progress) continue;
      const bool moved =
          !plan_.is_followed() ? StartPrefetches() : !IsPlanPaused() && plan_.Advance();
      progress = moved || jobs_.has_new();
    }
    if (!paused_ && !plan_.is_followed()) flush_.StartWriteBehind();
    AdvanceAll(Job::Kind::kFlush);
    pages_.EndPump();
  } while (flush_.Finish());
  return pages_.TakeActions();
}

bool Pager::AdvanceAll(Job::Kind kind) {
  Jobs::List& jobs = jobs_.of(kind);
  bool progress = false;
  for (auto it = jobs.begin(); it != jobs.end();) {
    const Outcome outcome = Advance(*it);
    progress |= outcome != Outcome::kWaiting;
    if (outcome == Outcome::kDone) room_.ForgetHolder(*it);
    it = outcome == Outcome::kDone ? jobs.erase(it) : std::next(it);
  }
  return progress;
}

Outcome Pager::Advance(Job& job) {
  if (pages_[job.tile].transfer_job == &job) return Outcome::kWaiting;
  switch (job.kind) {
    case Job::Kind::kAcquire: return AdvanceAcquire(job);
    case Job::Kind::kEvict: return room_.AdvanceEvict(job);
    case Job::Kind::kFlush: return flush_.Advance(job);
    case Job::Kind::kPrefetch: return AdvancePrefetch(job);
  }
  return Outcome::kDone;
}

// Starts the next transfer that brings the tile nearer to the job's tier.
Outcome Pager::Fill(Job& job) {
  const Page& page = pages_[job.tile];
  if (page.is_moving()) return Outcome::kWaiting;
  absl::Status why;
  Room::Answer room = room_.EnsureFrame(job, job.tier, job.position, &why);
  // Room is taken in one order: what waits for the device must not keep pinned room.
  if (room == Room::Answer::kWaiting && job.tier == Tier::kDevice) room_.ReleaseHeld(job);
  const Copy& other = page.copy(Other(job.tier));
  Transfer transfer = page.stored ? Transfer::kRead : Transfer::kZero;
  if (room == Room::Answer::kReady && other.is_ready()) {
    if (other.leaving) return Outcome::kWaiting;
    transfer = job.tier == Tier::kDevice ? Transfer::kCopyIn : Transfer::kCopyOut;
  } else if (room == Room::Answer::kReady && job.tier == Tier::kDevice) {
    // With device room in hand, staging may take whatever is not leased: waiting here while holding
    // that room could make a caller wait for it for ever.
    if (other.leaving) return Outcome::kWaiting;
    room = room_.EnsureFrame(job, Tier::kPinned, 0, &why);
  }
  if (room != Room::Answer::kReady) return FailOrWait(job, room, why);
  const bool is_lease = job.kind == Job::Kind::kAcquire;
  pages_.Start(job.tile, transfer, is_lease ? MoveReason::kLease : MoveReason::kAhead, &job);
  plan_.CountPulled(job, transfer);
  if (transfer != Transfer::kCopyIn || job.stream == kNoStream) return Outcome::kProgress;
  pages_[job.tile].transfer_job = nullptr;  // the stream waits for the copy, the caller does not
  return Grant(job, /*after_copy=*/true);
}

Outcome Pager::FailOrWait(Job& job, Room::Answer answer, const absl::Status& why) {
  return answer == Room::Answer::kWaiting ? Outcome::kWaiting : Fail(job, why);
}

// Of a lease, the caller is told; whatever else there is no room for is not done.
Outcome Pager::Fail(Job& job, absl::Status status) {
  if (job.kind == Job::Kind::kAcquire) {
    if (status == pages_.write_error()) pages_.ClearWriteError();
    if (job.use) plan_.Abandon(/*deviated=*/true);
    room_.ReleaseHeld(job);
    pages_.Push({.kind = Action::Kind::kFail,
                 .tile = job.tile,
                 .ticket = job.ticket,
                 .status = std::move(status)});
  }
  return Outcome::kDone;
}

// --- Prefetches ---

Outcome Pager::AdvancePrefetch(Job& job) {
  Page& page = pages_[job.tile];
  Copy& target = page.copy(job.tier);
  if (target.is_ready() && job.failure.ok()) {
    if (pages_.leases().held(job.tile, job.tier) == 0) target.prefetched = true;
    ++pages_.stats().prefetches;
    return Outcome::kDone;
  }
  const bool over = paused_ || !job.failure.ok() || pages_.leases().IsWritten(job.tile) ||
                    page.discard || page.is_gone || target.leaving;
  const Outcome outcome = over ? Outcome::kDone : Fill(job);
  if (outcome == Outcome::kDone) room_.ReleaseHeld(job);
  return outcome;
}

bool Pager::StartPrefetches() {
  if (pages_.writes_fail() || paused_) return false;
  bool progress = false;
  const auto most = static_cast<size_t>(pages_.options().max_prefetches);
  while (jobs_.of(Job::Kind::kPrefetch).size() < most) {
    const UseQueue::Entry* use = uses_.PrefetchCandidate();
    if (use == nullptr) break;
    // A tile that is to be written whole before this use has nothing to bring in until then.
    const uint64_t position = uses_.prefetch_position();
    const uint64_t next = uses_.NextUse(use->tile, use->tier);
    if (next < position && uses_.At(next).access == Access::kDiscard) break;
    const bool needless = use->access == Access::kDiscard ||
                          pages_[use->tile].copy(use->tier).state != Copy::State::kNone ||
                          pages_.leases().IsWritten(use->tile);
    if (!needless) {
      if (!room_.IsFor(use->tile, use->tier, position)) break;
      jobs_.Add(Job::Kind::kPrefetch, use->tile, use->tier).position = position;
      progress = true;
    }
    uses_.AdvancePrefetch();
  }
  return progress;
}

}  // namespace spillway::engine
