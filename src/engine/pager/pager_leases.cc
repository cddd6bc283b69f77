// SPDX-License-Identifier: Apache-2.0
//
// Leases: how one is asked for, granted and ended, and where readers take them without asking.

#include <algorithm>
#include <utility>

#include "src/engine/pager/pager.h"

namespace spillway::engine {

void Pager::Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream) {
  uses_.OnUse(tile, tier);
  const auto use = plan_.Ask(tile, tier, access);
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
  Fail(*job, absl::CancelledError(pages_.options().describe(job->tile) +
                                  ": the wait for a lease was interrupted"));
  room_.ForgetHolder(*job);
  requests.erase(job);
}

void Pager::BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream) {
  pages_.leases().BeginDrain(tile, tier, access, stream);
  plan_.DrainBegan(tile, tier);
}

Pager::LeaseEnd Pager::EndLease(TileIndex tile, Tier tier, Access access, bool drained) {
  pages_.leases().End(tile, tier, access, drained);
  plan_.Released(tile, drained);
  if (Writes(access)) {
    // Its stream waited for the copy, but word of that comes another way, and may come later.
    if (tier == Tier::kDevice && pages_[tile].transfer == Transfer::kCopyIn)
      pages_[tile].written_before_copy = true;
    if (tier == Tier::kPinned) flush_.MarkWritten(tile);
  }
  EndDiscard(tile);
  if (plan_.is_followed()) {
    plan_.LeaseEnded(tile);
  } else {
    room_.GoToRest(tile);
  }
  return {.tile = tile, .tier = tier};
}

Pager::LeaseEnd Pager::GiveUp(TileIndex tile, Access access) {
  plan_.Abandon(/*deviated=*/true);
  pages_.leases().End(tile, Tier::kPinned, access, /*drained=*/false);
  pages_.SetStored(tile, true);
  if (pages_[tile].is_ready(Tier::kPinned) && !pages_[tile].copy(Tier::kPinned).leaving)
    pages_.DropFrame(tile, Tier::kPinned);
  return {.tile = tile, .tier = Tier::kPinned};
}

// Not while a failed write waits to be told: whoever comes next has to ask, and is told.
void Pager::LetIn(const LeaseEnd& ended) {
  const auto [tile, tier] = ended;
  const Page& page = pages_[tile];
  const bool stays = page.is_ready(tier) && !pages_.leases().IsWritten(tile) && !page.discard &&
                     !page.is_leaving() && !page.written_before_copy &&
                     !(tier == Tier::kPinned && pages_.IsInReservedRange(tile));
  if (stays && pages_.write_error().ok() && plan_.MayEnter(tile, tier)) {
    leases().Open(tile, tier, page.copy(tier).offset);
  } else {
    (void)pages_.leases().Close(tile, tier);
  }
}

// What Acquire and Grant do.
void Pager::Shared(TileIndex tile, Tier tier) {
  uses_.OnUse(tile, tier);
  pages_.leases().Entered();
  pages_.Used(tile, tier);
  plan_.Shared(tile, tier);
}

Outcome Pager::AdvanceAcquire(Job& job) {
  if (!job.failure.ok()) return Fail(job, job.failure);
  if (job.use && !job.pulled) return AdvancePlanned(job);
  Page& page = pages_[job.tile];
  Copy& target = page.copy(job.tier);
  const bool makes_way = job.tier == Tier::kPinned && pages_.IsInReservedRange(job.tile) &&
                         !target.leaving && !page.is_moving() && !pages_.writes_fail() &&
                         !plan_.LiesAsPlanned(job.tile, job.tier);
  if (makes_way && pages_.leases().Close(job.tile, Tier::kPinned))
    room_.StartEvict(job.tile, Tier::kPinned);
  // What goes to rest on NVMe is not met on its way.
  const bool is_leaving =
      target.leaving || (page.copy(Other(job.tier)).leaving && page.tile->rest == Tier::kNvme);
  if (!pages_.CanLease(job) || is_leaving) {
    room_.ReleaseHeld(job);  // who waits for a lease to end must not keep room from its holder
    return Outcome::kWaiting;
  }
  absl::Status why;
  // Room on the device is taken first.
  Room::Answer room =
      job.tier == Tier::kPinned ? room_.EnsureReservedFrame(job, &why) : Room::Answer::kReady;
  if (room == Room::Answer::kReady && target.is_ready()) {
    if (Writes(job.access) && page.is_moving()) return Outcome::kWaiting;
    return Grant(job, /*after_copy=*/false);
  }
  // A stream can wait for the copy itself.
  const bool arrives = page.transfer == Transfer::kCopyIn && job.tier == Tier::kDevice;
  if (arrives && job.stream != kNoStream) return Grant(job, /*after_copy=*/true);
  if (page.is_moving()) return Outcome::kWaiting;
  if (room == Room::Answer::kReady && job.access != Access::kDiscard) return Fill(job);
  if (room == Room::Answer::kReady) room = room_.EnsureFrame(job, job.tier, job.position, &why);
  if (room == Room::Answer::kReady && job.tier == Tier::kDevice)
    room = room_.EnsureReservedFrame(job, &why);
  if (room != Room::Answer::kReady) return FailOrWait(job, room, why);
  PageTable::SetReady(target);
  return Grant(job, /*after_copy=*/false);
}

Outcome Pager::AdvancePlanned(Job& job) {
  switch (plan_.AdvanceAcquire(job)) {
    case PlanRun::Answer::kWaiting: return Outcome::kWaiting;
    case PlanRun::Answer::kPulled: return Outcome::kProgress;
    case PlanRun::Answer::kGrant: return Grant(job, /*after_copy=*/false);
    case PlanRun::Answer::kGrantAfterCopy: return Grant(job, /*after_copy=*/true);
  }
  return Outcome::kWaiting;
}

Outcome Pager::Grant(Job& job, bool after_copy) {
  Page& page = pages_[job.tile];
  pages_.leases().Take(job.tile, job.tier, job.access);
  pages_.Used(job.tile, job.tier);
  page.leased_before_copy |= after_copy;
  if (Writes(job.access) && !after_copy) pages_.VoidOtherCopies(job.tile, job.tier);
  if (job.use) plan_.Granted(job.tile);
  pages_.Push({.kind = Action::Kind::kGrant,
               .tile = job.tile,
               .pinned_offset = page.copy(Tier::kPinned).offset,
               .device_offset = page.copy(Tier::kDevice).offset,
               .ticket = job.ticket,
               .after_copy = after_copy});
  return Outcome::kDone;
}

std::vector<std::string> Pager::LeaseNames(size_t limit) const {
  std::vector<std::string> names;
  for (TileIndex tile = 0; tile < pages_.num_tiles() && names.size() < limit; ++tile) {
    if (pages_.leases().IsLeased(tile)) names.push_back(pages_.options().describe(tile));
  }
  return names;
}

}  // namespace spillway::engine
