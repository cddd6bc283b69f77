// SPDX-License-Identifier: Apache-2.0
//
// How a tile gets its frame: a free run, or a claim on the cheapest contiguous window whose tiles
// can leave.

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

// What a tile's leaving costs, a byte: forgetting it now and bringing it back later; moving it
// first.
constexpr double kForgetCost = 1.0;
constexpr double kCopyOutCost = 1.5;
constexpr double kWriteCost = 3.0;
// A write costs a request, however small; and what stays for a while shares one with others.
constexpr uint64_t kLeastWriteBytes = 64 * kKiB;

}  // namespace

Residency::Room Residency::EnsureFrame(Job& job, Tier tier, uint64_t position, absl::Status* why) {
  const TileIndex index = job.tile;
  Tile& tile = tiles_[index];
  Copy& target = copy(tile, tier);
  job.awaits.reset();
  if (target.state == Copy::State::kHeld || target.state == Copy::State::kReady)
    return Room::kReady;
  if (target.state == Copy::State::kClaiming) {
    job.awaits = ClaimKey{tier, index};
    return Room::kWaiting;
  }
  const uint64_t frame_bytes = FrameBytes(tile);
  ArenaMap& arena = arenas_[At(tier)];
  Window window;
  std::optional<uint64_t> offset;
  if (IsHome(tile, tier)) {
    window = FindLowestWindow(tier, frame_bytes);
    if (window.found && arena.AllocateAt(window.offset, frame_bytes, index)) offset = window.offset;
  } else {
    const bool has_place = tier == Tier::kPinned && HasOwnPlace(tile);
    if (has_place && arena.AllocateAt(tile.own_place, frame_bytes, index)) offset = tile.own_place;
    if (!offset && following_) {
      offset = AllocateAsPlanned(index, tier, frame_bytes);
      if (!offset && IsPlannedFrameComing(index, tier)) return Room::kWaiting;
    }
    // A plan may have put what rests elsewhere there for a moment.
    if (!offset) offset = arena.Allocate(frame_bytes, index, homes_bytes_[At(tier)]);
    if (!offset && following_ && IsRoomComing(tier)) return Room::kWaiting;
    if (!offset) window = FindWindow(tier, frame_bytes, position);
  }
  if (offset) {
    target.state = Copy::State::kHeld;
    target.offset = *offset;
    target.holder = &job;
    Count(index, tier, true);
    return Room::kReady;
  }
  if (window.found) {
    // Where a reader has just come, the search begins again, and finds it.
    if (!MakeClaim(job, tier, window.offset, frame_bytes))
      return EnsureFrame(job, tier, position, why);
    job.awaits = ClaimKey{tier, index};
    return Room::kWaiting;
  }
  if (window.possible) return Room::kWaiting;
  *why = NoRoom(index, tier);
  return Room::kImpossible;
}

// A frame in pinned memory from before the tiles were added that will stay there: a lease would
// hold it in their way, so nobody has one without asking.
bool Residency::IsWhereHomesWillBe(const Tile& tile) const {
  const Copy& held = copy(tile, Tier::kPinned);
  return held.state == Copy::State::kReady && held.offset < homes_bytes_[At(Tier::kPinned)] &&
         !tile.rest && options_.has_store;
}

// More of pinned memory, from there on, is left to the frames that stay.
void Residency::ShutWhereHomesWillBe(uint64_t from) {
  const ArenaMap& arena = arenas_[At(Tier::kPinned)];
  const uint64_t until = homes_bytes_[At(Tier::kPinned)];
  for (auto it = arena.At(from); it != arena.segments().end() && it->first < until; ++it) {
    const TileIndex index = it->second.tile;
    if (it->second.kind == ArenaMap::Kind::kFrame && IsWhereHomesWillBe(tiles_[index]))
      (void)leases_.count(index, Tier::kPinned).Close();
  }
}

// The frame where the tile rests is taken before its first lease anywhere, so that its bytes always
// have a way back; after the frame of a lease on the device, since room is taken from above.
Residency::Room Residency::EnsureHome(Job& job, absl::Status* why) {
  const std::optional<Tier> rest = tiles_[job.tile].rest;
  if (!rest || *rest == Tier::kNvme || *rest == job.tier) return Room::kReady;
  const Room room = EnsureFrame(job, *rest, job.position, why);
  // What waits for the device must not keep pinned room.
  if (room == Room::kWaiting && *rest == Tier::kDevice) ReleaseHeld(job);
  return room;
}

Residency::Leave Residency::CanLeave(const ArenaMap::Segment& segment, Tier tier, uint64_t position,
                                     double* cost) const {
  if (segment.kind == ArenaMap::Kind::kFree) return Leave::kNow;
  if (segment.kind == ArenaMap::Kind::kReserved) return Leave::kLater;
  const Tile& tile = tiles_[segment.tile];
  const Copy& held = copy(tile, tier);
  const uint32_t leases = leases_.leases(segment.tile, tier);
  if (leases > held.draining) return Leave::kNever;
  const bool homeless = tier == Tier::kPinned && !options_.has_store && !tile.zero;
  if (homeless || IsHome(tile, tier)) return Leave::kNever;
  if (leases > 0 || held.leaving || tile.transfer != Transfer::kNone) return Leave::kLater;
  if (held.holder != nullptr) return Leave::kLater;

  // A prefetch never sends away what is needed before it; a caller's need goes first.
  uint64_t next = uses_.NextUse(segment.tile, tier);
  if (tier == Tier::kPinned) next = std::min(next, uses_.NextUse(segment.tile, Tier::kDevice));
  if (position > 0 && next <= position) return Leave::kLater;

  const bool elsewhere =
      tile.stored || tile.zero || held.state == Copy::State::kHeld || Ready(tile, Other(tier));
  const bool copies = tier == Tier::kDevice || IsHome(tile, Tier::kDevice);
  // What the plan drops before it is used again leaves at no cost.
  if (following_ && following_->follower.IsDroppedNext(segment.tile, tier)) {
    *cost = 0;
    return Leave::kNow;
  }
  const double move_cost = elsewhere ? kForgetCost : copies ? kCopyOutCost : kWriteCost;
  const double recency = static_cast<double>(tile.last_use) / static_cast<double>(clock_ + 1);
  const uint64_t away = following_ ? following_->follower.EventsUntilNextUse(segment.tile)
                        : next == UseQueue::kNever ? next
                                                   : next - uses_.now();
  const double nearness =
      away == UseQueue::kNever ? 0.0 : 4.0 + 256.0 / (static_cast<double>(away) + 1);
  const bool small_write = !elsewhere && !copies && IsSmall(tile);
  const uint64_t bytes =
      small_write ? std::max(segment.size_bytes, kLeastWriteBytes) : segment.size_bytes;
  *cost = static_cast<double>(bytes) * (move_cost + recency + nearness);
  return Leave::kNow;
}

// The cheapest window of a small arena; of a large one, of the part that follows the last claim, so
// that the search goes round. Where that part has none, of the arena from its start. Never of what
// is left to the frames that stay.
Residency::Window Residency::FindWindow(Tier tier, uint64_t size_bytes, uint64_t position) const {
  const uint64_t start = homes_bytes_[At(tier)], next = claimed_until_[At(tier)];
  if (arenas_[At(tier)].segments().size() > options_.most_weighed && next > start) {
    const Window near = FindWindowFrom(next, tier, size_bytes, position);
    if (near.found) return near;
  }
  return FindWindowFrom(start, tier, size_bytes, position);
}

// For a frame that stays: the first window without a lease, whatever leaving costs, so that such
// frames lie one beside the other. It may have to be waited for. Those that lie at the bottom
// without a gap are gone past once, not for each that follows.
Residency::Window Residency::FindLowestWindow(Tier tier, uint64_t size_bytes) {
  const ArenaMap& arena = arenas_[At(tier)];
  uint64_t& row_end = homes_until_[At(tier)];
  auto it = arena.At(row_end);
  const auto is_home = [&](const ArenaMap::Segment& segment) {
    return segment.kind == ArenaMap::Kind::kFrame && IsHome(tiles_[segment.tile], tier);
  };
  for (; it != arena.segments().end() && is_home(it->second); ++it)
    row_end = it->first + it->second.size_bytes;
  Window window;
  uint64_t bytes = 0;
  for (; it != arena.segments().end(); ++it) {
    const auto& [offset, segment] = *it;
    double cost = 0;
    const Leave leave = CanLeave(segment, tier, /*position=*/0, &cost);
    if (leave == Leave::kNever) {
      bytes = 0;
      continue;
    }
    if (bytes == 0) window = {.offset = offset, .found = true};
    window.found &= leave == Leave::kNow;
    bytes += segment.size_bytes;
    if (bytes < size_bytes) continue;
    window.possible = true;
    return window;
  }
  return {};
}

// One pass with two ends: the window grows to the right until it is large enough, then sheds what
// it can on the left. Segments that cannot leave now cut it; those that never can (a lease) also
// cut what is possible later. Once a window is found, it is the best of the first `most_weighed`.
Residency::Window Residency::FindWindowFrom(uint64_t from, Tier tier, uint64_t size_bytes,
                                            uint64_t position) const {
  struct Part {
    uint64_t offset, size_bytes;
    double cost;
  };
  Window best;
  std::deque<Part> parts;
  uint64_t window_bytes = 0, possible_bytes = 0;
  double window_cost = 0;
  size_t weighed = 0;
  const ArenaMap& arena = arenas_[At(tier)];
  const auto end = arena.segments().end();
  for (auto it = arena.At(from); it != end && !(best.found && weighed >= options_.most_weighed);
       ++it) {
    const auto& [offset, segment] = *it;
    const uint64_t start = segment.kind == ArenaMap::Kind::kFree ? std::max(offset, from) : offset;
    const uint64_t bytes = offset + segment.size_bytes - start;
    ++weighed;
    double cost = 0;
    const Leave leave = CanLeave(segment, tier, position, &cost);
    possible_bytes = leave == Leave::kNever ? 0 : possible_bytes + bytes;
    best.possible |= possible_bytes >= size_bytes;
    if (leave != Leave::kNow) {
      parts.clear();
      window_bytes = 0;
      window_cost = 0;
      continue;
    }
    parts.push_back({start, bytes, cost});
    window_bytes += bytes;
    window_cost += cost;
    while (window_bytes - parts.front().size_bytes >= size_bytes) {
      window_bytes -= parts.front().size_bytes;
      window_cost -= parts.front().cost;
      parts.pop_front();
    }
    if (window_bytes < size_bytes || (best.found && best.cost <= window_cost)) continue;
    best.found = true;
    best.offset = parts.front().offset;
    best.cost = window_cost;
  }
  return best;
}

// False, and nothing happens, if a tile in the window has a reader since it was weighed.
bool Residency::MakeClaim(Job& job, Tier tier, uint64_t offset, uint64_t size_bytes) {
  const TileIndex index = job.tile;
  const ClaimKey key{tier, index};
  ArenaMap& arena = arenas_[At(tier)];
  for (auto it = arena.At(offset); it != arena.segments().end() && it->first < offset + size_bytes;
       ++it) {
    const bool is_frame = it->second.kind == ArenaMap::Kind::kFrame;
    if (is_frame && !leases_.count(it->second.tile, tier).Close()) return false;
  }
  claimed_until_[At(tier)] = offset + size_bytes;
  arena.ReserveFree(offset, size_bytes, index);
  copy(tiles_[index], tier).state = Copy::State::kClaiming;
  Claim& claim = claims_[key];
  claim.offset = offset;
  claim.size_bytes = size_bytes;
  claim.holder = &job;
  for (auto it = arena.segments().find(offset);
       it != arena.segments().end() && it->first < offset + size_bytes; ++it) {
    if (it->second.kind != ArenaMap::Kind::kFrame) continue;
    copy(tiles_[it->second.tile], tier).leaving = true;
    ++claim.leaving;
    AddJob(evictions_, Job::Kind::kEvict, it->second.tile, tier).claim = key;
  }
  SPILLWAY_CHECK(claim.leaving > 0);
  return true;
}

void Residency::FinishClaim(ClaimKey key) {
  const Claim& claim = claims_.at(key);
  Copy& target = copy(tiles_[key.second], key.first);
  ArenaMap& arena = arenas_[At(key.first)];
  arena.ReservedToFrame(claim.offset, claim.size_bytes, key.second);
  target.state = Copy::State::kHeld;
  target.offset = claim.offset;
  target.holder = claim.holder;
  Count(key.second, key.first, true);
  claims_.erase(key);
}

// One of the tiles could not leave: whoever waits for the claim is told now, and the others leave
// for nobody.
void Residency::CancelClaim(ClaimKey key, const absl::Status& why) {
  const auto [tier, index] = key;
  const Claim claim = claims_.at(key);
  claims_.erase(key);
  arenas_[At(tier)].Unreserve(claim.offset, claim.size_bytes, index);
  copy(tiles_[index], tier).state = Copy::State::kNone;
  for (Job& job : evictions_) {
    if (job.claim == key) job.claim.reset();
  }
  // A job whose tile is in transfer looks again when that ends.
  if (tiles_[index].transfer != Transfer::kNone) return;
  for (Jobs* jobs : {&acquires_, &evictions_, &flushes_, &prefetches_}) {
    for (Job& job : *jobs) {
      if (job.awaits == key) job.failure = why;
    }
  }
}

void Residency::DropFrame(TileIndex index, Tier tier, std::optional<ClaimKey> claim_key) {
  Tile& tile = tiles_[index];
  Copy& leaving = copy(tile, tier);
  const bool is_free = leases_.count(index, tier).Close();
  SPILLWAY_CHECK(is_free);
  if (leaving.prefetched) ++stats_.prefetch_wasted;
  const uint64_t offset = leaving.offset;
  leaving = Copy{};
  if (IsHome(tile, tier)) {  // the bytes go, the frame stays
    SPILLWAY_CHECK(!claim_key);
    leaving.state = Copy::State::kHeld;
    leaving.offset = offset;
    return;
  }
  Count(index, tier, false);
  if (!claim_key) {
    arenas_[At(tier)].Free(offset);
    return;
  }
  Claim& claim = claims_.at(*claim_key);
  arenas_[At(tier)].FreeInto(offset, claim.offset, claim.size_bytes, claim_key->second);
  if (--claim.leaving == 0) FinishClaim(*claim_key);
}

// Gives back the frames that a job holds and does not use while it waits for something else.
void Residency::ReleaseHeld(const Job& job) {
  Tile& tile = tiles_[job.tile];
  if (tile.transfer != Transfer::kNone) return;
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    Copy& held = copy(tile, tier);
    const bool home = tier == Tier::kPinned && !options_.has_store && Ready(tile, Tier::kDevice);
    const bool own = held.state == Copy::State::kHeld && held.holder == &job;
    if (own && !held.leaving && leases_.leases(job.tile, tier) == 0 && !home)
      DropFrame(job.tile, tier);
  }
}

// The job is over: what it held, or was about to, is idle and may be taken.
void Residency::ForgetHolder(const Job& job) {
  for (Copy& held : tiles_[job.tile].copies) {
    if (held.holder == &job) held.holder = nullptr;
  }
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    auto claim = claims_.find({tier, job.tile});
    if (claim != claims_.end() && claim->second.holder == &job) claim->second.holder = nullptr;
  }
}

absl::Status Residency::NoRoom(TileIndex index, Tier tier) const {
  const ArenaMap& arena = arenas_[At(tier)];
  const uint64_t frame_bytes = FrameBytes(tiles_[index]);
  std::string message = options_.describe(index) + " needs " + base::FormatBytes(frame_bytes) +
                        " of contiguous " + std::string(Name(tier)) + " memory; the budget is " +
                        base::FormatBytes(arena.size_bytes());
  const std::string flag = tier == Tier::kDevice ? "device_bytes" : "pinned_bytes";
  if (frame_bytes > arena.size_bytes()) {
    return absl::ResourceExhaustedError(message + ": raise " + flag + " to at least " +
                                        base::FormatBytes(frame_bytes) +
                                        ", or register it with smaller tiles");
  }
  std::string holders;
  int count = 0;
  uint64_t homeless_bytes = 0, home_bytes = 0;
  for (const auto& [offset, segment] : arena.segments()) {
    if (segment.kind != ArenaMap::Kind::kFrame) continue;
    if (IsHome(tiles_[segment.tile], tier)) home_bytes += segment.size_bytes;
    if (leases_.leases(segment.tile, tier) == 0) {
      homeless_bytes += segment.size_bytes;
      continue;
    }
    if (++count > 8) continue;
    holders += (count > 1 ? ", " : "") + options_.describe(segment.tile) + " (" +
               base::FormatBytes(segment.size_bytes) + ")";
  }
  if (count > 0) message += "; leases in the way: " + holders + (count > 8 ? ", and more" : "");
  if (home_bytes > 0) {
    message += "; frames of roles that are placed there take " + base::FormatBytes(home_bytes) +
               " of it (EngineOptions::placement)";
  }
  if (tier == Tier::kPinned && !options_.has_store) {
    message += "; without a store everything rests in pinned memory (" +
               base::FormatBytes(homeless_bytes) + " now): give a store folder";
  }
  return absl::ResourceExhaustedError(message + "; release leases or raise " + flag);
}

}  // namespace spillway::engine
