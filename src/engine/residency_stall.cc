// SPDX-License-Identifier: Apache-2.0
//
// Why a caller waits: read off the state, for a timeline. It decides nothing.

#include <algorithm>

#include "src/engine/residency.h"

namespace spillway::engine {

std::optional<Stall> Residency::WhyWaits(Ticket ticket) const {
  const auto job = std::find_if(acquires_.begin(), acquires_.end(),
                                [&](const Job& waiting) { return waiting.ticket == ticket; });
  if (job == acquires_.end()) return std::nullopt;
  const Tile& tile = tiles_[job->tile];
  switch (tile.transfer) {
    case Transfer::kNone: break;
    case Transfer::kRead: return Stall{StallCause::kNvme, job->tier, job->tile};
    case Transfer::kWrite: return Stall{StallCause::kWriteBack, job->tier, job->tile};
    case Transfer::kZero: return Stall{StallCause::kZeros, job->tier, job->tile};
    case Transfer::kCopyIn:
    case Transfer::kCopyOut: return Stall{StallCause::kCopy, job->tier, job->tile};
  }
  const bool conflicts = IsWritten(job->tile) || (Writes(job->access) && IsLeased(job->tile));
  if (conflicts) return Stall{StallCause::kLeased, job->tier, job->tile};
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    if (copy(tile, tier).leaving) return WhyLeaving(job->tile, tier);
    if (copy(tile, tier).state == Copy::State::kClaiming) return WhyClaiming({tier, job->tile});
  }
  const bool has_frame = copy(tile, job->tier).state == Copy::State::kHeld;
  const Tier tier = has_frame ? Tier::kPinned : job->tier;
  return Stall{StallCause::kNoRoom, tier, InTheWay(tier)};
}

// What the first tile that has to leave for the claim waits for; one that is moving goes first.
Stall Residency::WhyClaiming(ClaimKey key) const {
  const Job* leaving = nullptr;
  for (const Job& job : evictions_) {
    if (job.claim != key) continue;
    if (leaving == nullptr || tiles_[job.tile].transfer != Transfer::kNone) leaving = &job;
    if (tiles_[leaving->tile].transfer != Transfer::kNone) break;
  }
  if (leaving == nullptr) return {StallCause::kNoRoom, key.first, key.second};
  return WhyLeaving(leaving->tile, key.first);
}

Stall Residency::WhyLeaving(TileIndex index, Tier tier) const {
  const Tile& tile = tiles_[index];
  switch (tile.transfer) {
    case Transfer::kWrite: return {StallCause::kWriteBack, tier, index};
    case Transfer::kCopyOut: return {StallCause::kCopyOut, tier, index};
    default: break;
  }
  // From the device it leaves to pinned memory, which may have to be made room in too.
  const bool claims = copy(tile, Tier::kPinned).state == Copy::State::kClaiming;
  if (tier == Tier::kDevice && claims) return WhyClaiming({Tier::kPinned, index});
  return {StallCause::kNoRoom, tier, index};
}

// The largest tile with a lease, else the largest that is there.
TileIndex Residency::InTheWay(Tier tier) const {
  TileIndex largest = TimelineEvent::kNoTile;
  std::pair<bool, uint64_t> most{false, 0};
  for (const auto& [offset, segment] : arenas_[At(tier)].segments()) {
    if (segment.kind != ArenaMap::Kind::kFrame) continue;
    const std::pair<bool, uint64_t> size{leases_.leases(segment.tile, tier) > 0,
                                         segment.size_bytes};
    if (size <= most) continue;
    most = size;
    largest = segment.tile;
  }
  return largest;
}

}  // namespace spillway::engine
