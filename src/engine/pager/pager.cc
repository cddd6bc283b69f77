// SPDX-License-Identifier: Apache-2.0
//
// The pager's events and its pump.

#include "src/engine/pager/pager.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/base/check.h"

namespace spillway::engine {

TileIndex Pager::AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                         StorePlace place) {
  const bool did_fit = pages_.AllFit();
  const TileIndex tile = pages_.AddTile(size_bytes, role, transient, stored, place);
  // The plan may use the tiles' own places, which exist only while all tiles fit, or frames where
  // the tile's reserved frame will lie.
  if (pages_[tile].tile->has_reserved_frame() || did_fit != pages_.AllFit())
    plan_.Abandon(/*deviated=*/false);
  return tile;
}

void Pager::Reserve(Ticket ticket, TileIndex tile) {
  Job& job = jobs_.Add(Job::Kind::kAcquire, tile, *pages_[tile].rest);
  job.ticket = ticket;
  job.position = 0;
  job.reserves = true;
}

// --- Leases ---

void Pager::Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream) {
  uses_.OnUse(tile, tier);
  const auto use = plan_.Ask({.tile = tile, .tier = tier, .access = access});
  Job& job = jobs_.Add(Job::Kind::kAcquire, tile, tier);
  job.access = access;
  job.ticket = ticket;
  job.stream = stream;
  job.position = 0;
  job.use = use;
}

void Pager::Withdraw(Ticket ticket) {
  if (flush_.Stop(ticket)) return;
  Jobs::List& requests = jobs_.of(Job::Kind::kAcquire);
  const auto job = std::find_if(requests.begin(), requests.end(),
                                [ticket](const Job& each) { return each.ticket == ticket; });
  if (job == requests.end()) return;
  Page& page = pages_[job->tile];
  if (page.transfer_job == &*job) page.transfer_job = nullptr;
  arrivals_.Fail(*job, absl::CancelledError(pages_.options().describe(job->tile) +
                                            ": the wait for a lease was interrupted"));
  room_.ForgetHolder(*job);
  requests.erase(job);
}

void Pager::BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream) {
  pages_.leases().BeginDrain(tile, tier, access, stream);
  plan_.DrainBegan(tile);
}

void Pager::EndLease(TileIndex tile, Tier tier, Access access, bool drained) {
  pages_.leases().End(tile, tier, access, drained);
  plan_.Released(tile, drained);
  if (Writes(access)) {
    // The stream waited for the copy, but TransferDone reports its end separately and may come
    // later.
    if (tier == Tier::kDevice && pages_[tile].transfer == Transfer::kCopyIn)
      pages_.SetWrittenBeforeCopy(tile, true);
    if (tier == Tier::kPinned) flush_.MarkWritten(tile);
  }
  EndDiscard(tile);
  if (plan_.is_followed()) {
    plan_.LeaseEnded(tile);
  } else {
    room_.GoToRest(tile);
  }
}

void Pager::GiveUp(TileIndex tile, Access access) {
  plan_.Abandon(/*deviated=*/true);
  pages_.leases().End(tile, Tier::kPinned, access, /*drained=*/false);
  pages_.SetStored(tile, true);
  if (pages_[tile].is_ready(Tier::kPinned) && !pages_[tile].copy(Tier::kPinned).leaving)
    pages_.DropFrame(tile, Tier::kPinned);
}

// --- Other events from callers ---

absl::Status Pager::Evict(TileIndex tile) {
  if (pages_.leases().IsLeased(tile)) {
    return absl::FailedPreconditionError(
        pages_.options().describe(tile) +
        (pages_.leases().HasHolder(tile)
             ? " is leased: release its leases before Evict"
             : " is still used by a stream on which a lease of it was released: wait for the "
               "stream before Evict"));
  }
  room_.Sink(tile);
  return absl::OkStatus();
}

absl::Status Pager::Discard(TileIndex tile) {
  if (pages_.leases().HasHolder(tile)) {
    return absl::FailedPreconditionError(pages_.options().describe(tile) +
                                         " is leased: release its leases before Discard");
  }
  plan_.DiscardAsked(tile);
  pages_.Discard(tile);
  EndDiscard(tile);
  return absl::OkStatus();
}

// Completes a discard if nothing stands in its way. Call it whenever a discard may take effect.
void Pager::EndDiscard(TileIndex tile) {
  if (!pages_.DropIfDiscarded(tile)) return;
  plan_.Discarded(tile);
  if (pages_[tile].is_gone) room_.ReservedFrameGone();
}

absl::Status Pager::Forget(TileIndex first, TileIndex count, Stored stored) {
  for (TileIndex tile = first; tile < first + count; ++tile) {
    if (!pages_.leases().IsLeased(tile) && !jobs_.IsAwaited(tile)) continue;
    return absl::FailedPreconditionError(pages_.options().describe(tile) +
                                         " is leased: release its leases before Unregister");
  }
  plan_.Abandon(/*deviated=*/false);
  uses_.Clear();
  for (TileIndex tile = first; tile < first + count; ++tile) {
    pages_[tile].is_gone = true;
    if (stored == Stored::kKept) pages_.SetStored(tile, false);
    pages_.Discard(tile);
    EndDiscard(tile);
  }
  return absl::OkStatus();
}

void Pager::Pause() {
  SPILLWAY_CHECK(!in_use());
  Stop();
}

void Pager::Stop() {
  arrivals_.SetPaused(true);
  plan_.Abandon(/*deviated=*/false);
  uses_.Clear();
}

// No transfer is in flight and no caller waits, so the jobs and claims that are left were not
// requested by a caller, and end here together with the frames that they were for.
void Pager::Reset(const std::function<bool(TileIndex)>& is_stored) {
  SPILLWAY_CHECK(!in_use() && transfers_.in_flight() == 0);
  jobs_.Clear();
  room_.Reset();
  flush_.Reset();
  pages_.Reset(is_stored);
  arrivals_.SetPaused(false);
}

// --- Events from the mover ---

void Pager::TransferDone(TileIndex tile, const absl::Status& status) {
  const Transfers::EndedTransfer ended = transfers_.End(tile);
  const bool is_write = ended.transfer == Transfer::kWrite;
  if (is_write) pages_.failures().WriteEnded(status.ok());
  if (!status.ok()) {
    if (ended.job != nullptr) ended.job->failure = status;
    if (ended.is_written) flush_.Fail(status);
    // A caller that needs a tile that could not be brought in receives the failure when bringing it
    // in fails again. A lease whose stream waits for the copy is not requested again, so that
    // failure is recorded here.
    const bool is_streams = ended.transfer == Transfer::kCopyIn && ended.job == nullptr;
    using Kind = WriteFailures::Kind;
    if (is_write) {
      pages_.failures().SetUnreported(
          status, pages_[tile].tile->transient ? Kind::kUnneeded : Kind::kRetried);
    } else if (ended.is_leased || (is_streams && !ended.planned)) {
      pages_.failures().SetUnreported(status, Kind::kLost);
    }
    EndDiscard(tile);
    plan_.Abandon(/*deviated=*/true);
    return;
  }
  transfers_.Arrive(tile, ended);
  if (ended.transfer == Transfer::kCopyOut) flush_.MarkWritten(tile);
  EndDiscard(tile);
  plan_.TransferEnded(tile, ended.planned);
  // The lease that did not wait for the copy may have ended already.
  if (ended.is_leased && !plan_.is_followed()) room_.GoToRest(tile);
}

// --- The pump ---

std::vector<Action> Pager::TakeActions() {
  plan_.BeginPump();
  do {
    bool progress = true;
    while (progress) {
      progress = AdvanceAll(Job::Kind::kAcquire);
      progress |= AdvanceAll(Job::Kind::kEvict);
      flush_.AddJobs(IsPlanPaused() && transfers_.in_flight() > 0);
      progress |= AdvanceAll(Job::Kind::kFlush);
      progress |= AdvanceAll(Job::Kind::kPrefetch);
      progress |= jobs_.TakeHasNew();
      if (progress) continue;
      const bool moved =
          !plan_.is_followed() ? arrivals_.StartPrefetches() : !IsPlanPaused() && plan_.Advance();
      progress = moved || jobs_.has_new();
    }
    if (!arrivals_.is_paused() && !plan_.is_followed()) flush_.StartWriteBehind();
    AdvanceAll(Job::Kind::kFlush);
    transfers_.EndPump();
  } while (flush_.Finish());
  return std::exchange(pages_.actions(), {});
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
    case Job::Kind::kAcquire: return arrivals_.AdvanceAcquire(job);
    case Job::Kind::kPrefetch: return arrivals_.AdvancePrefetch(job);
    case Job::Kind::kEvict: return room_.AdvanceEvict(job);
    case Job::Kind::kFlush: return flush_.Advance(job);
  }
  return Outcome::kDone;
}

}  // namespace spillway::engine
