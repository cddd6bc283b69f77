// SPDX-License-Identifier: Apache-2.0
//
// Frames and claims, and the evictions that make room for them. The choice of the window is left to
// room_search.cc.

#include "src/engine/pager/room.h"

#include <utility>
#include <vector>

#include "src/base/check.h"

namespace spillway::engine {

// --- Coming ---

Room::Answer Room::EnsureFrame(Job& job, Tier tier, uint64_t position, absl::Status* why) {
  const TileIndex tile = job.tile;
  Copy& target = pages_[tile].copy(tier);
  job.awaits.reset();
  if (target.has_frame()) return Answer::kReady;
  if (target.state == Copy::State::kClaiming) {
    job.awaits = ClaimKey{tier, tile};
    return Answer::kWaiting;
  }
  const uint64_t frame_bytes = pages_[tile].frame_bytes();
  Window window;
  std::optional<uint64_t> offset;
  if (pages_[tile].is_reserved(tier)) {
    uint64_t& until = reserved_until_[At(tier)];
    window = FindLowestWindow(tier, frame_bytes, until);
    if (!window.possible) window = FindLowestWindow(tier, frame_bytes, 0);
    if (window.found) until = window.offset + frame_bytes;
    if (window.found && pages_.arena(tier).AllocateAt(window.offset, frame_bytes, tile))
      offset = window.offset;
  } else {
    bool waits = false;
    offset = Allocate(tile, tier, &waits);
    if (waits) return Answer::kWaiting;
    if (!offset) window = FindWindow(tier, frame_bytes, position);
  }
  if (offset) {
    pages_.HoldFrame(tile, tier, *offset, &job);
    return Answer::kReady;
  }
  if (window.found) {
    MakeClaim(job, tier, window.offset, frame_bytes);
    job.awaits = ClaimKey{tier, tile};
    return Answer::kWaiting;
  }
  if (window.possible) return Answer::kWaiting;
  *why = NoRoom(tile, tier);
  return Answer::kImpossible;
}

// Takes a free frame: the tile's own place, the frame that the plan has for it, or any. Returns
// nullopt if there is none, and sets `waits` if the plan is about to make room.
std::optional<uint64_t> Room::Allocate(TileIndex tile, Tier tier, bool* waits) {
  const Page& page = pages_[tile];
  ArenaMap& arena = pages_.arena(tier);
  const uint64_t frame_bytes = page.frame_bytes();
  const bool has_place = tier == Tier::kPinned && pages_.HasOwnPlace(*page.tile);
  if (has_place && arena.AllocateAt(page.tile->own_place, frame_bytes, tile))
    return page.tile->own_place;
  if (plan_ != nullptr) {
    if (const auto planned = plan_->Allocate(tile, tier)) return planned;
    *waits = plan_->IsComing(tile, tier);
    if (*waits) return std::nullopt;
  }
  // Any frame will do: a plan may have used the tile's own place for a moment, for a tile that
  // rests elsewhere.
  const auto any = arena.Allocate(frame_bytes, tile);
  if (!any && plan_ != nullptr) *waits = plan_->follower().IsRoomComing(tier);
  return any;
}

bool Room::IsFor(TileIndex tile, Tier tier, uint64_t position) const {
  const uint64_t frame_bytes = pages_[tile].frame_bytes();
  return pages_.arena(tier).HasFree(frame_bytes) || FindWindow(tier, frame_bytes, position).found;
}

void Room::ReleaseHeld(const Job& job) {
  const Page& page = pages_[job.tile];
  if (page.is_moving()) return;
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    const Copy& held = page.copy(tier);
    const bool is_last =
        tier == Tier::kPinned && !pages_.options().has_store && page.is_ready(Tier::kDevice);
    const bool own = held.state == Copy::State::kHeld && held.holder == &job;
    if (own && !held.leaving && pages_.leases().held(job.tile, tier) == 0 && !is_last)
      pages_.DropFrame(job.tile, tier);
  }
}

void Room::ForgetHolder(const Job& job) {
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    Copy& copy = pages_[job.tile].copy(tier);
    if (copy.holder == &job) copy.holder = nullptr;
    const auto claim = claims_.find({tier, job.tile});
    if (claim != claims_.end() && claim->second.holder == &job) claim->second.holder = nullptr;
  }
}

// --- Claims ---

// Claims the window for the job's tile, and starts the eviction of the tiles in it.
void Room::MakeClaim(Job& job, Tier tier, uint64_t offset, uint64_t size_bytes) {
  const TileIndex tile = job.tile;
  const ClaimKey key{tier, tile};
  ArenaMap& arena = pages_.arena(tier);
  const uint64_t end = offset + size_bytes;
  const std::vector<TileIndex> tiles = arena.TilesIn(offset, end);
  claimed_until_[At(tier)] = end;
  arena.ClaimFree(offset, size_bytes, tile);
  pages_[tile].copy(tier).state = Copy::State::kClaiming;
  Claim& claim = claims_[key];
  claim.window = {.offset = offset, .size_bytes = size_bytes, .claimant = tile};
  claim.holder = &job;
  SPILLWAY_CHECK(!tiles.empty());
  claim.leaving = static_cast<int>(tiles.size());
  for (const TileIndex each : tiles) {
    pages_[each].copy(tier).leaving = true;
    jobs_.Add(Job::Kind::kEvict, each, tier).claim = key;
  }
}

void Room::FinishClaim(ClaimKey key) {
  const auto [tier, tile] = key;
  const auto claim = claims_.extract(key);
  const auto& [window, leaving, holder] = claim.mapped();
  pages_.arena(tier).ClaimedToFrame(window.offset, window.size_bytes, tile);
  pages_.HoldFrame(tile, tier, window.offset, holder);
}

// Cancels a claim after one of the tiles in it could not leave: jobs that wait for the claim fail
// with `why`, and the other tiles' evictions continue without a claimant.
void Room::CancelClaim(ClaimKey key, const absl::Status& why) {
  const auto [tier, tile] = key;
  const ClaimWindow window = claims_.extract(key).mapped().window;
  pages_.arena(tier).GiveUpClaim(window.offset, window.size_bytes, tile);
  pages_[tile].copy(tier).state = Copy::State::kNone;
  for (Job& job : jobs_.of(Job::Kind::kEvict)) {
    if (job.claim == key) job.claim.reset();
  }
  // If the tile is in transfer, its jobs look for room again when the transfer ends.
  if (!pages_[tile].is_moving()) jobs_.FailClaim(key, why);
}

void Room::DropFrame(TileIndex tile, Tier tier, std::optional<ClaimKey> key) {
  if (!key) return pages_.DropFrame(tile, tier);
  Claim& claim = claims_.at(*key);
  pages_.DropFrame(tile, tier, claim.window);
  if (--claim.leaving == 0) FinishClaim(*key);
}

// --- Leaving ---

void Room::StartEvict(TileIndex tile, Tier tier) {
  pages_[tile].copy(tier).leaving = true;
  jobs_.Add(Job::Kind::kEvict, tile, tier).sinks = true;
}

void Room::Sink(TileIndex tile) {
  const Page& page = pages_[tile];
  if (pages_.leases().IsLeased(tile)) return;
  const Tier tier = page.has_newest(Tier::kDevice) ? Tier::kDevice : Tier::kPinned;
  if (!page.has_newest(tier) || page.copy(tier).leaving || page.is_reserved(tier)) return;
  if (tier == Tier::kPinned && !pages_.options().has_store) return;
  StartEvict(tile, tier);
}

void Room::GoToRest(TileIndex tile) {
  const Page& page = pages_[tile];
  if (!page.rest || pages_.leases().IsLeased(tile)) return;
  if (*page.rest == Tier::kNvme) {
    if (pages_.failures().MayWriteUnasked()) Sink(tile);
    return;
  }
  const Tier other = Other(*page.rest);
  const bool may_leave = other == Tier::kDevice || pages_.options().has_store;
  if (may_leave && page.has_newest(other) && !page.copy(other).leaving) StartEvict(tile, other);
}

Outcome Room::AdvanceEvict(Job& job) {
  Page& page = pages_[job.tile];
  if (page.is_moving()) return Outcome::kWaiting;
  const bool from_device = job.tier == Tier::kDevice;
  const bool may_forget = page.MayForget(job.tier);

  absl::Status failure = may_forget ? absl::OkStatus() : job.failure;
  if (failure.ok() && !may_forget) {
    Answer answer = Answer::kReady;
    if (from_device) answer = EnsureFrame(job, Tier::kPinned, 0, &failure);
    if (answer == Answer::kWaiting) return Outcome::kWaiting;
    if (answer == Answer::kReady) {
      const Transfer transfer = from_device                          ? Transfer::kCopyOut
                                : page.GoesToReservedFrame(job.tier) ? Transfer::kCopyIn
                                                                     : Transfer::kWrite;
      transfers_.Start(job.tile, transfer, MoveReason::kMakeRoom, &job);
      return Outcome::kProgress;
    }
  }
  if (!failure.ok()) {
    pages_.Stay(job.tile, job.tier);
    if (plan_ != nullptr) plan_->CouldNotLeave(job.tile);
    if (job.claim) CancelClaim(*job.claim, failure);
    return Outcome::kDone;
  }
  DropFrame(job.tile, job.tier, job.claim);
  if (plan_ != nullptr) plan_->Unsettle(job.tile);
  const bool to_nvme = page.tile->rest == Tier::kNvme;
  const bool sink_further = from_device && pages_.options().has_store && (to_nvme || !page.zero);
  if (sink_further && (to_nvme || job.sinks)) Sink(job.tile);
  return Outcome::kDone;
}

}  // namespace spillway::engine
