// SPDX-License-Identifier: Apache-2.0
//
// Reserved frames are taken first, at their fixed offsets. The other frames are placed in one sweep
// over the period:
//   1. Tiles that are retained across the seam, the boundary between two periods, lie at the
//   bottom.
//      Those that are retained all the time are the lowest.
//   2. Uses begin in order. A run without a retained gap goes into the next free range after the
//   frame
//      that was placed last, so that frames take turns and each is free long before it is needed. A
//      run with a retained gap goes into the lowest free range.
//   3. If no free range fits, the cheapest window of tiles that no use holds is evicted: the gaps
//      that these tiles are in are given up. So every use is placed unless leases alone are in the
//      way.

#include "src/plan/pack.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/frames.h"

namespace spillway::plan {
namespace {

constexpr uint32_t kNone = ~0u;
constexpr uint64_t kNowhere = Frames::kNowhere;

class Packer {
 public:
  Packer(const Retention& retention, const PackOptions& options, bool compact, Retained* retained)
      : retention_(retention),
        options_(options),
        compact_(compact),
        retained_(*retained),
        frames_(options.capacity, retention.size_bytes),
        current_(retention.num_tiles(), kNone),
        in_use_(retention.num_tiles()) {}

  // Occupies the reserved frames, which are in use all the time.
  absl::Status PlaceReservedFrames() {
    for (TileIndex tile = 0; tile < retention_.num_tiles(); ++tile) {
      const uint64_t reserved = retention_.reserved_frame[tile];
      if (!retention_.has_reserved_frame(tile)) continue;
      if (frames_.FirstFree(reserved, retention_.size_bytes[tile]) != reserved) {
        return absl::InvalidArgumentError(absl::StrCat("tile ", tile, " rests at ", reserved,
                                                       " of ", options_.capacity,
                                                       ", where there is no room for it"));
      }
      frames_.Occupy(reserved, tile);
      in_use_[tile] = true;
      std::fill(offset_.begin() + retention_.first[tile],
                offset_.begin() + retention_.first[tile + 1], reserved);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<uint64_t>> Run() {
    std::vector<uint32_t> begins(retention_.num_positions, kNone);
    std::vector<uint32_t> ends(retention_.num_positions + 1, kNone);
    offset_.resize(retention_.uses.size());
    for (uint32_t u = 0; u < retention_.uses.size(); ++u) {
      const Use& use = retention_.uses[u];
      if (retention_.has_reserved_frame(use.tile)) continue;
      if (use.kind == Use::Kind::kHold && use.begin == use.end) continue;  // retained all the time
      begins[use.begin] = u;
      if (retention_.MayComeEarly(u)) begins[use.end] = u;
      if (use.kind == Use::Kind::kHold) ends[use.end] = u;
    }
    SPILLWAY_RETURN_IF_ERROR(PlaceReservedFrames());
    SPILLWAY_RETURN_IF_ERROR(PlaceOverSeam());
    for (uint32_t p = 0; p <= retention_.num_positions; ++p) {
      if (ends[p] != kNone) EndUse(ends[p]);
      if (p == retention_.num_positions || begins[p] == kNone) continue;
      const uint32_t u = begins[p];
      if (IsVoid(u)) {
        p == retention_.uses[u].begin ? BecomeVoid(u) : ComeEarly(u);
      } else {
        SPILLWAY_RETURN_IF_ERROR(BeginUse(u));
      }
    }
    return std::move(offset_);
  }

 private:
  static constexpr int kMaxRangesLookedAt = 8;
  static constexpr size_t kMaxBlocksLookedAt = 256;
  // A tile that lay in this range across the seam comes back to it at `position`. Any other tile
  // must have left the range by then.
  struct Return {
    uint64_t size_bytes = 0;
    TileIndex tile = 0;
    uint32_t position = 0;
  };

  uint32_t Last(TileIndex tile) const { return retention_.first[tile + 1] - 1; }
  bool IsVoid(uint32_t u) const { return retention_.uses[u].kind == Use::Kind::kVoid; }
  // These return the beginning of a run whose first use is `u`, and the end of a run whose last use
  // is `u`. A void ends one run and begins another.
  uint32_t BeginOf(uint32_t u) const {
    return IsVoid(u) ? retention_.uses[u].end : retention_.uses[u].begin;
  }
  uint32_t EndOf(uint32_t u) const {
    return IsVoid(u) ? retention_.uses[u].begin : retention_.uses[u].end;
  }

  // --- The seam ---

  // Returns the first use of the run that lasts until the period's end.
  uint32_t FirstOfLastRun(TileIndex tile) const {
    uint32_t u = Last(tile);
    while (u > retention_.first[tile] && retained_[u - 1] && !IsVoid(u)) --u;
    return u;
  }
  uint32_t EndOfFirstRun(TileIndex tile) const {
    uint32_t u = retention_.first[tile];
    while (retained_[u] && !IsVoid(u)) ++u;
    return EndOf(u);
  }

  absl::Status PlaceOverSeam() {
    // How far the end of the first run is from kNone, and the tile: the last end comes first.
    std::vector<std::pair<uint32_t, TileIndex>> order;
    for (TileIndex tile = 0; tile < retention_.num_tiles(); ++tile) {
      if (retention_.has_reserved_frame(tile)) continue;
      if (retention_.first[tile] == retention_.first[tile + 1] || !retained_[Last(tile)]) continue;
      const uint32_t first = retention_.first[tile];
      const bool always = FirstOfLastRun(tile) == first && !IsVoid(first);
      order.emplace_back(always ? 0 : kNone - EndOfFirstRun(tile), tile);
    }
    std::sort(order.begin(), order.end());
    uint64_t next = 0;
    for (const auto& [before_none, tile] : order) {
      const uint64_t bytes = retention_.size_bytes[tile];
      const uint64_t offset = frames_.FirstFree(next, bytes);
      if (offset == kNowhere) {
        if (!options_.may_break) return NoRoom(tile, next);
        retained_[Last(tile)] = false;
        continue;
      }
      frames_.Occupy(offset, tile);
      current_[tile] = Last(tile);
      offset_[Last(tile)] = offset;
      if (before_none != 0) {
        const uint32_t back = FirstOfLastRun(tile);
        returns_[offset] = {bytes, tile, BeginOf(back)};
      }
      next = offset + bytes;
    }
    return absl::OkStatus();
  }

  // --- The sweep ---

  void EndUse(uint32_t u) {
    const TileIndex tile = retention_.uses[u].tile;
    in_use_[tile] = false;
    if (!retained_[u]) frames_.Free(tile);
  }

  void BecomeVoid(uint32_t u) {
    const TileIndex tile = retention_.uses[u].tile;
    if (frames_.OffsetOf(tile) != kNowhere) frames_.Free(tile);
  }

  // Places a tile that may come before its use. If there is no free room, gives up the gap: the
  // tile then comes with its use.
  void ComeEarly(uint32_t u) {
    if (!retained_[u]) return;
    std::optional<uint64_t> offset = TakeReturn(u);
    if (!offset) offset = FindFree(retention_.UseBytes(u), RunEnd(u), /*lowest=*/true);
    retained_[u] = offset.has_value();
    if (!offset) return;
    offset_[u] = *offset;
    frames_.Occupy(*offset, retention_.uses[u].tile);
    current_[retention_.uses[u].tile] = u;
  }

  absl::Status BeginUse(uint32_t u) {
    const Use& use = retention_.uses[u];
    if (frames_.OffsetOf(use.tile) == kNowhere) {
      if (const std::optional<uint64_t> back = TakeReturn(u)) {
        frames_.Occupy(*back, use.tile);
      } else {
        SPILLWAY_RETURN_IF_ERROR(Place(u));
      }
    }
    offset_[u] = frames_.OffsetOf(use.tile);
    current_[use.tile] = u;
    in_use_[use.tile] = true;
    return absl::OkStatus();
  }

  std::optional<uint64_t> TakeReturn(uint32_t u) {
    const TileIndex tile = retention_.uses[u].tile;
    const uint64_t offset = offset_[Last(tile)];
    auto it = returns_.find(offset);
    if (it == returns_.end() || it->second.tile != tile || it->second.position != BeginOf(u)) {
      return std::nullopt;
    }
    returns_.erase(it);
    return offset;
  }

  absl::Status Place(uint32_t u) {
    const TileIndex tile = retention_.uses[u].tile;
    const uint64_t bytes = retention_.size_bytes[tile];
    const uint32_t use_end = retention_.uses[u].end;
    std::optional<uint64_t> offset = FindFree(bytes, RunEnd(u), compact_ || retained_[u]);
    if (!offset && options_.may_break) {
      // Finds room for the use alone. The run then lasts until a tile comes back to that room.
      if (retained_[u]) offset = FindFree(bytes, use_end, compact_);
      if (!offset) offset = EvictWindow(bytes, use_end);
      if (offset) ShortenTo(u, ReturnWithin(*offset, bytes));
    }
    if (!offset) return NoRoom(tile, 0);
    frames_.Occupy(*offset, tile);
    if (!retained_[u]) cursor_ = *offset + bytes;
    return absl::OkStatus();
  }

  // Returns the end of the run that begins at `u`. REQUIRES: the run does not last across the seam.
  uint32_t RunEnd(uint32_t u) const {
    while (retained_[u]) {
      if (IsVoid(++u)) break;
    }
    return EndOf(u);
  }
  void ShortenTo(uint32_t u, uint32_t end) {
    if (RunEnd(u) <= end) return;
    while (retained_[u]) {
      if (EndOf(u + 1) > end) break;
      ++u;
    }
    retained_[u] = false;
  }

  // Returns the first position at which a tile comes back into the range; kNone: none does.
  uint32_t ReturnWithin(uint64_t offset, uint64_t bytes) const {
    uint32_t position = kNone;
    ForReturns(offset, bytes,
               [&](uint64_t, const Return& back) { position = std::min(position, back.position); });
    return position;
  }
  template <typename Visit>
  void ForReturns(uint64_t offset, uint64_t bytes, const Visit& visit) const {
    auto it = returns_.upper_bound(offset);
    if (it != returns_.begin() &&
        std::prev(it)->first + std::prev(it)->second.size_bytes > offset) {
      --it;
    }
    for (; it != returns_.end() && it->first < offset + bytes; ++it) visit(it->first, it->second);
  }

  // --- Room ---

  // Finds free room to which no tile comes back before `end`. Tries the first few ranges, from the
  // arena's start if `lowest`, else from the cursor; then the smallest ranges that are large
  // enough.
  std::optional<uint64_t> FindFree(uint64_t bytes, uint32_t end, bool lowest) const {
    const uint64_t from = lowest ? 0 : cursor_;
    auto it = frames_.free().upper_bound(from);
    if (it != frames_.free().begin()) --it;
    for (int looked = 0; looked < kMaxRangesLookedAt && it != frames_.free().end();
         ++looked, ++it) {
      const uint64_t limit = it->first + it->second;
      if (auto offset = FitIn(std::max(it->first, from), limit, bytes, end)) return offset;
    }
    auto fit = frames_.free_by_size().lower_bound({bytes, 0});
    for (int looked = 0; looked < kMaxRangesLookedAt && fit != frames_.free_by_size().end();
         ++looked, ++fit) {
      const auto& [size_bytes, offset] = *fit;
      if (auto found = FitIn(offset, offset + size_bytes, bytes, end)) return found;
    }
    return std::nullopt;
  }

  std::optional<uint64_t> FitIn(uint64_t offset, uint64_t limit, uint64_t bytes,
                                uint32_t end) const {
    while (offset + bytes <= limit) {
      uint64_t past = offset;
      ForReturns(offset, bytes, [&](uint64_t at, const Return& back) {
        if (back.position < end) past = at + back.size_bytes;
      });
      if (past == offset) return offset;
      offset = past;
    }
    return std::nullopt;
  }

  // Frees a range for a use that ends at `end`: the cheapest among the next blocks from the cursor
  // on, or, if there is none, of the whole arena.
  std::optional<uint64_t> EvictWindow(uint64_t bytes, uint32_t end) {
    std::optional<uint64_t> offset = CheapestWindow(bytes, end, cursor_, kMaxBlocksLookedAt);
    if (!offset) offset = CheapestWindow(bytes, end, 0, ~size_t{0});
    if (!offset) return std::nullopt;
    for (auto it = frames_.held().lower_bound(*offset);
         it != frames_.held().end() && it->first < *offset + bytes;
         it = frames_.held().lower_bound(*offset)) {  // the tile that left is no longer held
      GiveUpGap(it->second);
    }
    DropReturns(*offset, bytes, end);
    return offset;
  }

  std::optional<uint64_t> CheapestWindow(uint64_t bytes, uint32_t end, uint64_t from,
                                         size_t max_blocks) const {
    struct Part {
      uint64_t offset, size_bytes, cost;
    };
    std::vector<Part> parts;
    size_t head = 0;
    uint64_t window_bytes = 0, cost = 0, best_cost = kNowhere;
    std::optional<uint64_t> best;
    frames_.ForBlocks(from, [&](uint64_t offset, uint64_t size_bytes, TileIndex tile) {
      if (max_blocks-- == 0) return false;
      if (tile != kNone && in_use_[tile]) {
        head = parts.size();
        window_bytes = cost = 0;
        return true;
      }
      parts.push_back({offset, size_bytes, CostOf(offset, size_bytes, tile, end)});
      window_bytes += size_bytes;
      cost += parts.back().cost;
      while (window_bytes - parts[head].size_bytes >= bytes) {
        window_bytes -= parts[head].size_bytes;
        cost -= parts[head].cost;
        ++head;
      }
      if (window_bytes < bytes || cost >= best_cost) return true;
      best_cost = cost;
      best = parts[head].offset;
      return true;
    });
    return best;
  }

  uint64_t CostOf(uint64_t offset, uint64_t size_bytes, TileIndex tile, uint32_t end) const {
    if (tile != kNone) {
      const uint32_t gap = current_[tile];
      const bool saves_read = retention_.SavesRead(gap) && !IsVoid(gap);
      return size_bytes * ((saves_read ? 1 : 0) + (retention_.uses[gap].dirty ? 1 : 0));
    }
    uint64_t cost = 0;
    ForReturns(offset, size_bytes, [&](uint64_t, const Return& back) {
      if (back.position < end) cost += back.size_bytes;
    });
    return cost;
  }

  // Gives up the gap that the tile is in: the tile leaves, and comes back with its next use.
  void GiveUpGap(TileIndex tile) {
    const uint32_t gap = current_[tile];
    const uint64_t offset = frames_.OffsetOf(tile);
    retained_[gap] = false;
    frames_.Free(tile);
    if (gap == Last(tile) || !retained_[Last(tile)] || returns_.count(offset) > 0) return;
    const bool lay_over_seam = offset == offset_[Last(tile)];
    if (!lay_over_seam) return;
    returns_[offset] = {retention_.size_bytes[tile], tile, BeginOf(FirstOfLastRun(tile))};
  }

  // Gives up retaining across the seam the tiles that would come back into the range before `end`.
  void DropReturns(uint64_t offset, uint64_t bytes, uint32_t end) {
    std::vector<uint64_t> dropped;
    ForReturns(offset, bytes, [&](uint64_t at, const Return& back) {
      if (back.position >= end) return;
      retained_[Last(back.tile)] = false;
      dropped.push_back(at);
    });
    for (const uint64_t at : dropped) returns_.erase(at);
  }

  // --- Failure ---

  // Returns the error for a tile for which there is no contiguous room from `begin` on.
  absl::Status NoRoom(TileIndex tile, uint64_t begin) const {
    uint64_t largest = 0, run = 0;
    frames_.ForBlocks(begin, [&](uint64_t, uint64_t size_bytes, TileIndex at) {
      const bool held = at != kNone && (in_use_[at] || !options_.may_break);
      run = held ? 0 : run + size_bytes;
      largest = std::max(largest, run);
      return true;
    });
    const uint64_t tile_bytes = retention_.size_bytes[tile];
    const uint64_t missing_bytes = tile_bytes - std::min(tile_bytes, largest);
    const uint64_t peak = retention_.peak_use_bytes + retention_.ReservedFrameBytes();
    const std::string budget(options_.budget);
    return absl::ResourceExhaustedError(absl::StrCat(
        "plan: there is no frame for tile ", tile, " (", base::FormatBytes(tile_bytes),
        "): the largest run of bytes that no other tile needs at that time is ",
        base::FormatBytes(largest), ". Leases, transfers and reserved frames take up to ",
        base::FormatBytes(peak), " at once, and ", budget, " is ",
        base::FormatBytes(options_.capacity), ": raise it by at least ",
        base::FormatBytes(
            std::max(missing_bytes, peak > options_.capacity ? peak - options_.capacity : 0)),
        ", or use smaller tiles"));
  }

  const Retention& retention_;
  const PackOptions& options_;
  const bool compact_;
  Retained& retained_;
  Frames frames_;
  absl::btree_map<uint64_t, Return> returns_;  // by offset
  std::vector<uint64_t> offset_;               // by use
  std::vector<uint32_t> current_;              // by tile: its use, or the use before its gap
  std::vector<bool> in_use_;                   // by tile
  uint64_t cursor_ = 0;                        // end of the last frame that was placed in turn
};

}  // namespace

absl::StatusOr<std::vector<uint64_t>> Pack(const Retention& retention, const PackOptions& options,
                                           Retained* retained) {
  const Retained asked = *retained;
  auto offsets = Packer(retention, options, /*compact=*/false, retained).Run();
  if (offsets.ok()) return offsets;
  *retained = asked;
  auto compact = Packer(retention, options, /*compact=*/true, retained).Run();
  if (compact.ok() || !options.may_break) return compact;
  retained->assign(retained->size(), false);  // no gap is retained: only the uses are placed
  return Packer(retention, options, /*compact=*/true, retained).Run();
}

}  // namespace spillway::plan
