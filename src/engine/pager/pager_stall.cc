// SPDX-License-Identifier: Apache-2.0
//
// The part of Pager that derives from its state why a caller waits, for the timeline.

#include <algorithm>
#include <utility>

#include "src/engine/pager/pager.h"

namespace spillway::engine {
namespace {

// Returns why the first tile that must leave for the claim has not left yet. A tile with a transfer
// in flight takes precedence.
Stall WhyClaiming(const PageTable& pages, const Jobs& jobs, ClaimKey claim);

Stall WhyLeaving(const PageTable& pages, const Jobs& jobs, TileIndex tile, Tier tier) {
  const Page& page = pages[tile];
  switch (page.transfer.value_or(Transfer::kDrop)) {
    case Transfer::kWrite: return {StallCause::kWriteBack, tier, tile};
    case Transfer::kCopyOut: return {StallCause::kCopyOut, tier, tile};
    default: break;
  }
  // A tile that leaves the device goes to pinned memory, where it may have to wait for room too.
  const bool claims = page.copy(Tier::kPinned).state == Copy::State::kClaiming;
  if (tier == Tier::kDevice && claims) return WhyClaiming(pages, jobs, {Tier::kPinned, tile});
  return {StallCause::kNoRoom, tier, tile};
}

Stall WhyClaiming(const PageTable& pages, const Jobs& jobs, ClaimKey claim) {
  const Job* leaving = nullptr;
  for (const Job& job : jobs.of(Job::Kind::kEvict)) {
    if (job.claim != claim) continue;
    if (leaving == nullptr || pages[job.tile].is_moving()) leaving = &job;
    if (pages[leaving->tile].is_moving()) break;
  }
  if (leaving == nullptr) return {StallCause::kNoRoom, claim.first, claim.second};
  return WhyLeaving(pages, jobs, leaving->tile, claim.first);
}

// Returns the largest leased tile in the tier's arena, or the largest tile there if none is leased.
TileIndex InTheWay(const PageTable& pages, Tier tier) {
  TileIndex largest = TimelineEvent::kNoTile;
  std::pair<bool, uint64_t> most{false, 0};
  for (const auto& [offset, segment] : pages.arena(tier).segments()) {
    if (segment.kind != ArenaMap::Kind::kFrame) continue;
    const std::pair<bool, uint64_t> size{pages.leases().held(segment.tile, tier) > 0,
                                         segment.size_bytes};
    if (size <= most) continue;
    most = size;
    largest = segment.tile;
  }
  return largest;
}

}  // namespace

std::optional<Stall> Pager::WhyWaits(Ticket ticket) const {
  const Jobs::List& acquires = jobs_.of(Job::Kind::kAcquire);
  const auto job = std::find_if(acquires.begin(), acquires.end(),
                                [&](const Job& waiting) { return waiting.ticket == ticket; });
  if (job == acquires.end()) return std::nullopt;
  const Page& page = pages_[job->tile];
  switch (page.transfer.value_or(Transfer::kDrop)) {
    case Transfer::kRead: return Stall{StallCause::kNvme, job->tier, job->tile};
    case Transfer::kWrite: return Stall{StallCause::kWriteBack, job->tier, job->tile};
    case Transfer::kZero: return Stall{StallCause::kZeros, job->tier, job->tile};
    case Transfer::kCopyIn:
    case Transfer::kCopyOut: return Stall{StallCause::kCopy, job->tier, job->tile};
    default: break;
  }
  const Leases& leases = pages_.leases();
  if (leases.IsWritten(job->tile) || (Writes(job->access) && leases.IsLeased(job->tile)))
    return Stall{StallCause::kLeased, job->tier, job->tile};
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    if (page.copy(tier).leaving) return WhyLeaving(pages_, jobs_, job->tile, tier);
    if (page.copy(tier).state == Copy::State::kClaiming)
      return WhyClaiming(pages_, jobs_, {tier, job->tile});
  }
  const bool has_frame = page.copy(job->tier).state == Copy::State::kHeld;
  const Tier tier = has_frame ? Tier::kPinned : job->tier;
  return Stall{StallCause::kNoRoom, tier, InTheWay(pages_, tier)};
}

}  // namespace spillway::engine
