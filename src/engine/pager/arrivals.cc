// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/arrivals.h"

#include <utility>

namespace spillway::engine {

// --- Leases ---

Outcome Arrivals::AdvanceAcquire(Job& job) {
  if (!job.failure.ok()) return Fail(job, job.failure);
  if (job.reserves) return Reserve(job);
  if (job.use && !job.pulled) return AdvancePlanned(job);
  Page& page = pages_[job.tile];
  Copy& target = page.copy(job.tier);
  // A tile that is on its way to its resting place on NVMe is not leased in either tier.
  const bool is_leaving =
      target.leaving || (page.copy(Other(job.tier)).leaving && page.tile->rest == Tier::kNvme);
  if (!pages_.CanLease(job) || is_leaving) {
    // A job that waits for a lease to end must not hold room that the lease's holder may need.
    room_.ReleaseHeld(job);
    return Outcome::kWaiting;
  }
  if (target.is_ready()) {
    if (Writes(job.access) && page.is_moving()) return Outcome::kWaiting;
    return Grant(job, /*after_copy=*/false);
  }
  // A stream can wait for the copy by itself, so the lease is granted before the copy ends.
  const bool arrives = page.transfer == Transfer::kCopyIn && job.tier == Tier::kDevice;
  if (arrives && job.stream != kNoStream) return Grant(job, /*after_copy=*/true);
  if (page.is_moving()) return Outcome::kWaiting;
  if (job.access != Access::kDiscard) return Fill(job);
  absl::Status why;
  const Room::Answer room = room_.EnsureFrame(job, job.tier, job.position, &why);
  if (room != Room::Answer::kReady) return FailOrWait(job, room, why);
  target.SetReady();
  return Grant(job, /*after_copy=*/false);
}

Outcome Arrivals::Reserve(Job& job) {
  absl::Status why;
  const Room::Answer room = room_.EnsureFrame(job, job.tier, job.position, &why);
  if (room != Room::Answer::kReady) return FailOrWait(job, room, why);
  pages_.actions().push_back(
      {.kind = Action::Kind::kGrant, .tile = job.tile, .ticket = job.ticket});
  return Outcome::kDone;
}

Outcome Arrivals::AdvancePlanned(Job& job) {
  const PlanRun::Answer answer = plan_.AdvanceAcquire(job);
  if (answer == PlanRun::Answer::kWaiting) return Outcome::kWaiting;
  if (answer == PlanRun::Answer::kPulled) return Outcome::kProgress;
  return Grant(job, answer == PlanRun::Answer::kGrantAfterCopy);
}

Outcome Arrivals::Grant(Job& job, bool after_copy) {
  Page& page = pages_[job.tile];
  pages_.leases().Take(job.tile, job.tier, job.access);
  pages_.Used(job.tile, job.tier);
  page.leased_before_copy |= after_copy;
  const bool was_stored = page.stored && !page.tile->transient;
  if (Writes(job.access) && !after_copy) pages_.VoidOtherCopies(job.tile, job.tier);
  if (job.use) plan_.Granted(job.tile);
  pages_.actions().push_back({.kind = Action::Kind::kGrant,
                              .tile = job.tile,
                              .ticket = job.ticket,
                              .after_copy = after_copy,
                              .was_stored = was_stored});
  return Outcome::kDone;
}

// Starts the next transfer that brings the tile nearer to the job's tier.
Outcome Arrivals::Fill(Job& job) {
  const Page& page = pages_[job.tile];
  if (page.is_moving()) return Outcome::kWaiting;
  absl::Status why;
  Room::Answer room = room_.EnsureFrame(job, job.tier, job.position, &why);
  // Room is taken in one order: a job that waits for device room must not hold pinned room.
  if (room == Room::Answer::kWaiting && job.tier == Tier::kDevice) room_.ReleaseHeld(job);
  const Copy& other = page.copy(Other(job.tier));
  Transfer transfer = page.stored ? Transfer::kRead : Transfer::kZero;
  if (room == Room::Answer::kReady && other.is_ready()) {
    if (other.leaving) return Outcome::kWaiting;
    transfer = job.tier == Tier::kDevice ? Transfer::kCopyIn : Transfer::kCopyOut;
  } else if (room == Room::Answer::kReady && job.tier == Tier::kDevice) {
    // The job holds device room, so its staging frame may evict any tile without a lease (position
    // 0): if it waited here, a caller could wait for that device room for ever.
    if (other.leaving) return Outcome::kWaiting;
    room = room_.EnsureFrame(job, Tier::kPinned, 0, &why);
  }
  if (room != Room::Answer::kReady) return FailOrWait(job, room, why);
  const bool is_lease = job.kind == Job::Kind::kAcquire;
  transfers_.Start(job.tile, transfer, is_lease ? MoveReason::kLease : MoveReason::kAhead, &job);
  plan_.CountPulled(job, transfer);
  if (transfer != Transfer::kCopyIn || job.stream == kNoStream) return Outcome::kProgress;
  pages_[job.tile].transfer_job = nullptr;  // the stream waits for the copy, the caller does not
  return Grant(job, /*after_copy=*/true);
}

Outcome Arrivals::FailOrWait(Job& job, Room::Answer answer, const absl::Status& why) {
  return answer == Room::Answer::kWaiting ? Outcome::kWaiting : Fail(job, why);
}

Outcome Arrivals::Fail(Job& job, absl::Status status) {
  if (job.kind == Job::Kind::kAcquire) {
    pages_.failures().NoteReported(status);
    if (job.use) plan_.Abandon(/*deviated=*/true);
    room_.ReleaseHeld(job);
    pages_.actions().push_back({.kind = Action::Kind::kFail,
                                .tile = job.tile,
                                .ticket = job.ticket,
                                .status = std::move(status)});
  }
  return Outcome::kDone;
}

// --- Prefetches ---

Outcome Arrivals::AdvancePrefetch(Job& job) {
  Page& page = pages_[job.tile];
  Copy& target = page.copy(job.tier);
  if (target.is_ready() && job.failure.ok()) {
    if (job.access == Access::kDiscard) return Outcome::kDone;
    if (pages_.leases().held(job.tile, job.tier) == 0) target.prefetched = true;
    ++pages_.stats().prefetches;
    return Outcome::kDone;
  }
  // While a plan is followed, a prefetch must not take the room that the plan makes for its leases.
  const bool over = is_paused_ || plan_.is_followed() || !job.failure.ok() ||
                    pages_.leases().IsWritten(job.tile) || page.discard || page.is_gone ||
                    target.leaving;
  if (!over && job.access == Access::kDiscard) return TakeRoomAhead(job);
  const Outcome outcome = over ? Outcome::kDone : Fill(job);
  if (outcome == Outcome::kDone) room_.ReleaseHeld(job);
  return outcome;
}

// Takes the frame of a tile that will be written whole. The frame stays for the lease to come.
Outcome Arrivals::TakeRoomAhead(Job& job) {
  if (pages_[job.tile].is_moving()) return Outcome::kWaiting;
  absl::Status why;
  const Room::Answer room = room_.EnsureFrame(job, job.tier, job.position, &why);
  if (room == Room::Answer::kWaiting) return Outcome::kWaiting;
  plan_.FrameIsIdle(job.tile);
  return Outcome::kDone;
}

bool Arrivals::StartPrefetches() {
  if (!pages_.failures().MayWriteUnasked() || is_paused_) return false;
  bool progress = false;
  const auto most = static_cast<size_t>(pages_.options().max_prefetches);
  while (jobs_.of(Job::Kind::kPrefetch).size() < most) {
    const UseQueue::Entry* use = uses_.PrefetchCandidate();
    if (use == nullptr) break;
    // If an earlier declared use writes the tile whole, there is nothing to bring in before it.
    const uint64_t position = uses_.prefetch_position();
    const uint64_t next = uses_.NextUse(use->tile, use->tier);
    if (next < position && uses_.At(next).access == Access::kDiscard) break;
    // A tile that will be written whole needs no bytes, but on the device other tiles may have to
    // be copied out first to make room for it. In pinned memory, tiles that write-behind has stored
    // leave without a transfer, so nothing is prefetched.
    const bool is_discard = use->access == Access::kDiscard;
    const bool needless = (is_discard && use->tier == Tier::kPinned) ||
                          pages_[use->tile].copy(use->tier).state != Copy::State::kNone ||
                          pages_.leases().IsWritten(use->tile);
    if (!needless) {
      if (!room_.IsFor(use->tile, use->tier, position)) break;
      Job& job = jobs_.Add(Job::Kind::kPrefetch, use->tile, use->tier);
      job.access = use->access;
      job.position = position;
      progress = true;
    }
    uses_.AdvancePrefetch();
  }
  return progress;
}

}  // namespace spillway::engine
