// SPDX-License-Identifier: Apache-2.0
//
// Chooses which tiles to evict for another tile: each eviction has a cost, and the contiguous
// window of least cost is taken. This is where a page is chosen for eviction. The evictions
// themselves are left to room.cc.

#include <algorithm>
#include <deque>
#include <string>

#include "src/base/bytes.h"
#include "src/engine/pager/room.h"

namespace spillway::engine {
namespace {

// Cost of evicting a tile, per byte: kForgetCost if its copy is dropped now and brought back later,
// one of the other two if it must be moved first.
constexpr double kForgetCost = 1.0;
constexpr double kCopyOutCost = 1.5;
constexpr double kWriteCost = 3.0;
// The least bytes that the write of a small tile counts as. Every write costs a request, however
// small, and a small tile that stays for a while is written in one request with others.
constexpr uint64_t kLeastWriteBytes = 64 * kKiB;
// The number of segments by which the prefetch into the CPU's cache is ahead of the segment that is
// weighed. A large table does not fit in the cache, and reading its entries one after the other
// would take most of the search.
constexpr int kAhead = 8;

}  // namespace

Room::Leave Room::CanLeave(const ArenaMap::Segment& segment, Tier tier, uint64_t position,
                           double* cost) const {
  if (segment.kind == ArenaMap::Kind::kFree) return Leave::kNow;
  if (segment.kind == ArenaMap::Kind::kClaimed) return Leave::kLater;
  const Page& page = pages_[segment.tile];
  const Copy& held = page.copy(tier);
  const bool is_leased = pages_.leases().held(segment.tile, tier) > 0;
  if (is_leased && pages_.leases().HasHolder(segment.tile, tier)) return Leave::kNever;
  const bool is_last = tier == Tier::kPinned && !pages_.options().has_store && !page.zero;
  if (is_last || page.is_reserved(tier)) return Leave::kNever;
  if (is_leased || held.leaving || page.is_moving()) return Leave::kLater;
  if (held.holder != nullptr) return Leave::kLater;

  // A prefetch never evicts a tile whose use comes before its own. A caller's request (position 0)
  // may.
  uint64_t next = uses_.NextUse(segment.tile, tier);
  if (tier == Tier::kPinned) next = std::min(next, uses_.NextUse(segment.tile, Tier::kDevice));
  if (position > 0 && next <= position) return Leave::kLater;
  *cost = CostOf(page, segment, tier, next);
  return Leave::kNow;
}

void Room::Prefetch(const ArenaMap::Segment& segment) const {
  if (segment.kind != ArenaMap::Kind::kFrame) return;
  pages_.Prefetch(segment.tile);
  if (plan_ != nullptr) plan_->follower().tiles().Prefetch(segment.tile);
}

double Room::CostOf(const Page& page, const ArenaMap::Segment& segment, Tier tier,
                    uint64_t next_use) const {
  const TileIndex tile = segment.tile;
  // Evicting a copy that the plan drops before its next use costs nothing.
  if (plan_ != nullptr && plan_->follower().tiles().IsDroppedNext(tile, tier)) return 0;
  const bool may_forget = pages_[tile].MayForget(tier);
  const bool copies = tier == Tier::kDevice || page.is_reserved(Tier::kDevice);
  const double move_cost = may_forget ? kForgetCost : copies ? kCopyOutCost : kWriteCost;
  const double recency =
      static_cast<double>(page.last_use) / static_cast<double>(pages_.num_uses() + 1);
  const uint64_t away = plan_ != nullptr               ? plan_->follower().EventsUntilNextUse(tile)
                        : next_use == UseQueue::kNever ? next_use
                                                       : next_use - uses_.now();
  const double nearness =
      away == UseQueue::kNever ? 0.0 : 4.0 + 256.0 / (static_cast<double>(away) + 1);
  const bool small_write = !may_forget && !copies && page.tile->is_small;
  const uint64_t bytes =
      small_write ? std::max(segment.size_bytes, kLeastWriteBytes) : segment.size_bytes;
  return static_cast<double>(bytes) * (move_cost + recency + nearness);
}

// Finds the cheapest window. In a small arena it searches the whole arena. In a large arena it
// searches from the end of the last claim, so that successive searches go round the arena; if there
// is no window from there, it searches from the start.
Room::Window Room::FindWindow(Tier tier, uint64_t size_bytes, uint64_t position) const {
  const uint64_t next = claimed_until_[At(tier)];
  const bool is_large = pages_.arena(tier).segments().size() > pages_.options().most_weighed;
  if (is_large && next > 0) {
    const Window near = FindWindowFrom(next, tier, size_bytes, position);
    if (near.found) return near;
  }
  return FindWindowFrom(0, tier, size_bytes, position);
}

// Finds the window for a reserved frame: the lowest one without a lease, whatever the evictions
// cost, so that reserved frames lie side by side. The job may have to wait for that window
// (`possible` but not `found`).
Room::Window Room::FindLowestWindow(Tier tier, uint64_t size_bytes, uint64_t from) const {
  const ArenaMap& arena = pages_.arena(tier);
  Window window;
  uint64_t bytes = 0;
  for (auto it = arena.At(from); it != arena.segments().end(); ++it) {
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

// Searches in one pass: the window grows on the right until it is large enough, then drops the
// segments on the left that it does not need. A segment that cannot leave now cuts the window; one
// that cannot leave at all (a lease) also cuts the window that is possible later. Once a window is
// found, the search ends after `most_weighed` segments with the best window so far.
Room::Window Room::FindWindowFrom(uint64_t from, Tier tier, uint64_t size_bytes,
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
  const size_t most_weighed = pages_.options().most_weighed;
  const ArenaMap& arena = pages_.arena(tier);
  const auto end = arena.segments().end();
  auto ahead = arena.At(from);
  for (int i = 0; i < kAhead && ahead != end; ++i) Prefetch((ahead++)->second);
  for (auto it = arena.At(from); it != end && !(best.found && weighed >= most_weighed); ++it) {
    if (ahead != end) Prefetch((ahead++)->second);
    const auto& [offset, segment] = *it;
    // Of a frame that begins below `from`, only a part would be in the window.
    if (offset < from && segment.kind != ArenaMap::Kind::kFree) continue;
    const uint64_t start = std::max(offset, from);
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
    if (best.cost <= 0) break;
  }
  return best;
}

absl::Status Room::NoRoom(TileIndex tile, Tier tier) const {
  const ArenaMap& arena = pages_.arena(tier);
  const auto& describe = pages_.options().describe;
  const uint64_t frame_bytes = pages_[tile].frame_bytes();
  std::string message = describe(tile) + " needs " + base::FormatBytes(frame_bytes) +
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
  uint64_t other_bytes = 0, reserved_bytes = 0;
  for (const auto& [offset, segment] : arena.segments()) {
    if (segment.kind != ArenaMap::Kind::kFrame) continue;
    if (pages_[segment.tile].is_reserved(tier)) reserved_bytes += segment.size_bytes;
    if (pages_.leases().held(segment.tile, tier) == 0) {
      other_bytes += segment.size_bytes;
      continue;
    }
    if (++count > 8) continue;
    holders += (count > 1 ? ", " : "") + describe(segment.tile) + " (" +
               base::FormatBytes(segment.size_bytes) + ")";
  }
  if (count > 0) message += "; leases in the way: " + holders + (count > 8 ? ", and more" : "");
  if (reserved_bytes > 0) {
    message += "; frames of roles that are placed there take " + base::FormatBytes(reserved_bytes) +
               " of it (EngineOptions::placement)";
  }
  if (tier == Tier::kPinned && !pages_.options().has_store) {
    message += "; without a store everything rests in pinned memory (" +
               base::FormatBytes(other_bytes) + " now): give a store folder";
  }
  return absl::ResourceExhaustedError(message + "; release leases or raise " + flag);
}

}  // namespace spillway::engine
