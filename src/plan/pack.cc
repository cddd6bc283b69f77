// SPDX-License-Identifier: Apache-2.0
//
// One sweep over the period:
//   1. Tiles kept over the seam lie at the bottom, those kept all the time first.
//   2. Uses begin in order. A run without a kept gap goes into the free run after the last one, so
//      that frames take turns and each is free long before it is needed; a run that stays goes into
//      the lowest.
//   3. Where no free run does, the cheapest window of tiles that no use holds gives way: the gaps
//      they are in are given up. So every use is placed in the end unless leases alone are in the
//      way.

#include "src/plan/pack.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"

namespace spillway::plan {
namespace {

constexpr uint32_t kNone = ~0u;
constexpr uint64_t kNowhere = ~uint64_t{0};

class Packer {
 public:
  Packer(const Keeping& keeping, const PackOptions& options, bool compact, Kept* kept)
      : keeping_(keeping), options_(options), compact_(compact), kept_(*kept) {
    offset_.assign(keeping.uses.size(), 0);
    resident_.assign(keeping.num_tiles(), kNowhere);
    current_.assign(keeping.num_tiles(), kNone);
    in_use_.assign(keeping.num_tiles(), false);
    if (options.capacity > 0) AddFree(0, options.capacity);
  }

  absl::StatusOr<std::vector<uint64_t>> Run() {
    std::vector<uint32_t> begins(keeping_.num_positions, kNone);
    std::vector<uint32_t> ends(keeping_.num_positions + 1, kNone);
    for (uint32_t u = 0; u < keeping_.uses.size(); ++u) {
      const Use& use = keeping_.uses[u];
      if (use.kind == Use::Kind::kHold && use.begin == use.end) continue;  // kept all the time
      begins[use.begin] = u;
      if (keeping_.MayComeEarly(u)) begins[use.end] = u;
      if (use.kind == Use::Kind::kHold) ends[use.end] = u;
    }
    if (absl::Status status = PlaceOverSeam(); !status.ok()) return status;
    for (uint32_t p = 0; p <= keeping_.num_positions; ++p) {
      if (ends[p] != kNone) EndUse(ends[p]);
      if (p == keeping_.num_positions || begins[p] == kNone) continue;
      const uint32_t u = begins[p];
      if (IsVoid(u)) {
        p == keeping_.uses[u].begin ? BecomeVoid(u) : ComeEarly(u);
      } else if (absl::Status status = BeginUse(u); !status.ok()) {
        return status;
      }
    }
    return std::move(offset_);
  }

 private:
  static constexpr int kMaxRangesLookedAt = 8;
  static constexpr size_t kMaxBlocksLookedAt = 256;
  using FreeRanges = absl::btree_map<uint64_t, uint64_t>;  // offset to bytes; neighbours are joined
  // A tile that lay here over the seam comes back, and whoever is here must have left by then.
  struct Return {
    uint64_t size_bytes = 0;
    TileIndex tile = 0;
    uint32_t position = 0;
  };

  uint32_t Last(TileIndex tile) const { return keeping_.first[tile + 1] - 1; }
  bool IsVoid(uint32_t u) const { return keeping_.uses[u].kind == Use::Kind::kVoid; }
  // Of a run that begins, or ends, with a use. A void ends one and begins another.
  uint32_t BeginOf(uint32_t u) const {
    return IsVoid(u) ? keeping_.uses[u].end : keeping_.uses[u].begin;
  }
  uint32_t EndOf(uint32_t u) const {
    return IsVoid(u) ? keeping_.uses[u].begin : keeping_.uses[u].end;
  }

  // --- The seam ---

  // The use at which the tile comes back to stay until the period's end.
  uint32_t FirstOfLastRun(TileIndex tile) const {
    uint32_t u = Last(tile);
    while (u > keeping_.first[tile] && kept_[u - 1] && !IsVoid(u)) --u;
    return u;
  }
  uint32_t EndOfFirstRun(TileIndex tile) const {
    uint32_t u = keeping_.first[tile];
    while (kept_[u] && !IsVoid(u)) ++u;
    return EndOf(u);
  }

  absl::Status PlaceOverSeam() {
    std::vector<std::pair<uint32_t, TileIndex>> order;  // when they leave
    for (TileIndex tile = 0; tile < keeping_.num_tiles(); ++tile) {
      if (keeping_.first[tile] == keeping_.first[tile + 1] || !kept_[Last(tile)]) continue;
      const bool always = FirstOfLastRun(tile) == keeping_.first[tile] && AllKept(tile);
      order.emplace_back(always ? kNone : EndOfFirstRun(tile), tile);
    }
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    uint64_t offset = 0;
    for (const auto& [end, tile] : order) {
      const uint64_t bytes = keeping_.size_bytes[tile];
      if (offset + bytes > options_.capacity) {
        if (!options_.may_break) return Missing(tile, offset + bytes - options_.capacity);
        kept_[Last(tile)] = false;
        continue;
      }
      Occupy(offset, tile);
      current_[tile] = Last(tile);
      offset_[Last(tile)] = offset;
      if (end != kNone) {
        const uint32_t back = FirstOfLastRun(tile);
        returns_[offset] = {bytes, tile, BeginOf(back)};
      }
      offset += bytes;
    }
    return absl::OkStatus();
  }

  bool AllKept(TileIndex tile) const {
    for (uint32_t u = keeping_.first[tile]; u <= Last(tile); ++u) {
      if (!kept_[u] || IsVoid(u)) return false;
    }
    return true;
  }

  // --- The sweep ---

  void EndUse(uint32_t u) {
    const TileIndex tile = keeping_.uses[u].tile;
    in_use_[tile] = false;
    if (!kept_[u]) Free(tile);
  }

  void BecomeVoid(uint32_t u) {
    const TileIndex tile = keeping_.uses[u].tile;
    if (resident_[tile] != kNowhere) Free(tile);
  }

  // Only where there is room: its use can wait.
  void ComeEarly(uint32_t u) {
    if (!kept_[u]) return;
    std::optional<uint64_t> offset = TakeReturn(u);
    if (!offset) offset = FindFree(keeping_.UseBytes(u), RunEnd(u), /*lowest=*/true);
    kept_[u] = offset.has_value();
    if (!offset) return;
    offset_[u] = *offset;
    Occupy(*offset, keeping_.uses[u].tile);
    current_[keeping_.uses[u].tile] = u;
  }

  absl::Status BeginUse(uint32_t u) {
    const Use& use = keeping_.uses[u];
    if (resident_[use.tile] == kNowhere) {
      const std::optional<uint64_t> back = TakeReturn(u);
      if (back) {
        Occupy(*back, use.tile);
      } else if (absl::Status status = Place(u); !status.ok()) {
        return status;
      }
    }
    offset_[u] = resident_[use.tile];
    current_[use.tile] = u;
    in_use_[use.tile] = true;
    return absl::OkStatus();
  }

  std::optional<uint64_t> TakeReturn(uint32_t u) {
    const TileIndex tile = keeping_.uses[u].tile;
    const uint64_t offset = offset_[Last(tile)];
    auto it = returns_.find(offset);
    if (it == returns_.end() || it->second.tile != tile || it->second.position != BeginOf(u)) {
      return std::nullopt;
    }
    returns_.erase(it);
    return offset;
  }

  absl::Status Place(uint32_t u) {
    const TileIndex tile = keeping_.uses[u].tile;
    const uint64_t bytes = keeping_.size_bytes[tile];
    const uint32_t use_end = keeping_.uses[u].end;
    std::optional<uint64_t> offset = FindFree(bytes, RunEnd(u), compact_ || kept_[u]);
    if (!offset && kept_[u] && options_.may_break) {
      // Where it may lie for the use alone, and a while longer perhaps.
      offset = FindFree(bytes, use_end, compact_);
      if (offset) ShortenTo(u, ReturnWithin(*offset, bytes));
    }
    if (!offset && options_.may_break) {
      offset = EvictWindow(bytes, use_end);
      if (offset) ShortenTo(u, ReturnWithin(*offset, bytes));
    }
    if (!offset) return NoRoom(u);
    Occupy(*offset, tile);
    if (!kept_[u]) cursor_ = *offset + bytes;
    return absl::OkStatus();
  }

  // Where the run that begins at `u` ends; the tile does not stay over the seam.
  uint32_t RunEnd(uint32_t u) const {
    while (kept_[u]) {
      if (IsVoid(++u)) break;
    }
    return EndOf(u);
  }
  void ShortenTo(uint32_t u, uint32_t end) {
    if (RunEnd(u) <= end) return;
    while (kept_[u]) {
      if (EndOf(u + 1) > end) break;
      ++u;
    }
    kept_[u] = false;
  }

  // The first position at which a tile comes back into the range.
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

  // A free range that no tile comes back to before `end`: the lowest, or the next in turn; where
  // many are too small, the smallest that is large enough.
  std::optional<uint64_t> FindFree(uint64_t bytes, uint32_t end, bool lowest) const {
    auto it = free_.begin();
    uint64_t from = 0;
    if (!lowest) {
      from = cursor_;
      it = free_.upper_bound(cursor_);
      if (it != free_.begin()) --it;
    }
    for (int looked = 0; looked < kMaxRangesLookedAt && it != free_.end(); ++looked, ++it) {
      const uint64_t limit = it->first + it->second;
      if (auto offset = FitIn(std::max(it->first, from), limit, bytes, end)) return offset;
    }
    auto fit = by_size_.lower_bound({bytes, 0});
    for (int looked = 0; looked < kMaxRangesLookedAt && fit != by_size_.end(); ++looked, ++fit) {
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

  // The arena from an offset on: free ranges and the tiles between them, while visit returns true.
  template <typename Visit>
  void ForBlocks(uint64_t from, const Visit& visit) const {
    auto free = free_.lower_bound(from);
    auto held = held_.lower_bound(from);
    while (free != free_.end() || held != held_.end()) {
      if (held == held_.end() || (free != free_.end() && free->first < held->first)) {
        if (!visit(free->first, free->second, kNone)) return;
        ++free;
      } else {
        if (!visit(held->first, keeping_.size_bytes[held->second], held->second)) return;
        ++held;
      }
    }
  }

  // Makes a range free for a use that ends at `end`: the cheapest of those whose turn it is, or of
  // all.
  std::optional<uint64_t> EvictWindow(uint64_t bytes, uint32_t end) {
    std::optional<uint64_t> offset = CheapestWindow(bytes, end, cursor_, kMaxBlocksLookedAt);
    if (!offset) offset = CheapestWindow(bytes, end, 0, held_.size() + free_.size());
    if (!offset) return std::nullopt;
    std::vector<TileIndex> leaving;
    for (auto it = held_.lower_bound(*offset); it != held_.end() && it->first < *offset + bytes;
         ++it) {
      leaving.push_back(it->second);
    }
    for (const TileIndex tile : leaving) GiveUpGap(tile);
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
    uint64_t window_bytes = 0, cost = 0, best_cost = kNowhere, best = 0;
    ForBlocks(from, [&](uint64_t offset, uint64_t size_bytes, TileIndex tile) {
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
    if (best_cost == kNowhere) return std::nullopt;
    return best;
  }

  uint64_t CostOf(uint64_t offset, uint64_t size_bytes, TileIndex tile, uint32_t end) const {
    if (tile != kNone) {
      const uint32_t gap = current_[tile];
      const bool saves_read = keeping_.SavesRead(gap) && !IsVoid(gap);
      return size_bytes * ((saves_read ? 1 : 0) + (keeping_.uses[gap].dirty ? 1 : 0));
    }
    uint64_t cost = 0;
    ForReturns(offset, size_bytes, [&](uint64_t, const Return& back) {
      if (back.position < end) cost += back.size_bytes;
    });
    return cost;
  }

  // The tile, which is in a gap, leaves and comes back with its next use.
  void GiveUpGap(TileIndex tile) {
    const uint32_t gap = current_[tile];
    const uint64_t offset = resident_[tile];
    kept_[gap] = false;
    Free(tile);
    if (gap == Last(tile) || !kept_[Last(tile)] || returns_.count(offset) > 0) return;
    const bool lay_over_seam = offset == offset_[Last(tile)];
    if (!lay_over_seam) return;
    returns_[offset] = {keeping_.size_bytes[tile], tile, BeginOf(FirstOfLastRun(tile))};
  }

  // Tiles that would come back into the range too early are not kept over the seam.
  void DropReturns(uint64_t offset, uint64_t bytes, uint32_t end) {
    std::vector<uint64_t> dropped;
    ForReturns(offset, bytes, [&](uint64_t at, const Return& back) {
      if (back.position >= end) return;
      kept_[Last(back.tile)] = false;
      dropped.push_back(at);
    });
    for (const uint64_t at : dropped) returns_.erase(at);
  }

  // --- The arena ---

  void Occupy(uint64_t offset, TileIndex tile) {
    const uint64_t bytes = keeping_.size_bytes[tile];
    const auto [begin, size_bytes] = *std::prev(free_.upper_bound(offset));
    const uint64_t end = begin + size_bytes;
    SPILLWAY_CHECK(begin <= offset && offset + bytes <= end);
    RemoveFree(begin, size_bytes);
    if (begin < offset) AddFree(begin, offset - begin);
    if (offset + bytes < end) AddFree(offset + bytes, end - offset - bytes);
    held_[offset] = tile;
    resident_[tile] = offset;
  }

  void Free(TileIndex tile) {
    uint64_t begin = std::exchange(resident_[tile], kNowhere);
    uint64_t end = begin + keeping_.size_bytes[tile];
    held_.erase(begin);
    const auto next = free_.lower_bound(begin);
    const auto before = next == free_.begin() ? free_.end() : std::prev(next);
    const uint64_t next_begin = next == free_.end() ? kNowhere : next->first;
    const uint64_t next_bytes = next == free_.end() ? 0 : next->second;
    if (before != free_.end() && before->first + before->second == begin) {
      begin = before->first;
      RemoveFree(begin, before->second);
    }
    if (next_begin == end) {
      end += next_bytes;
      RemoveFree(next_begin, next_bytes);
    }
    AddFree(begin, end - begin);
  }

  void AddFree(uint64_t offset, uint64_t size_bytes) {
    free_.emplace(offset, size_bytes);
    by_size_.emplace(size_bytes, offset);
  }
  void RemoveFree(uint64_t offset, uint64_t size_bytes) {
    free_.erase(offset);
    by_size_.erase({size_bytes, offset});
  }

  // --- Failure ---

  absl::Status NoRoom(uint32_t u) const {
    const uint64_t bytes = keeping_.UseBytes(u);
    uint64_t largest = 0, run = 0;
    ForBlocks(0, [&](uint64_t, uint64_t size_bytes, TileIndex tile) {
      const bool held = tile != kNone && (in_use_[tile] || !options_.may_break);
      run = held ? 0 : run + size_bytes;
      largest = std::max(largest, run);
      return true;
    });
    return Missing(keeping_.uses[u].tile, bytes - std::min(bytes, largest));
  }

  absl::Status Missing(TileIndex tile, uint64_t bytes) const {
    const uint64_t peak = keeping_.PeakUseBytes();
    const std::string budget(options_.budget);
    return absl::ResourceExhaustedError(absl::StrCat(
        "plan: tile ", tile, " (", base::FormatBytes(keeping_.size_bytes[tile]),
        ") finds no contiguous room beside the leases of its time: ", base::FormatBytes(bytes),
        " are missing. Leases and transfers take up to ", base::FormatBytes(peak), " at once, ",
        budget, " is ", base::FormatBytes(options_.capacity), ": raise it by at least ",
        base::FormatBytes(std::max(bytes, peak > options_.capacity ? peak - options_.capacity : 0)),
        " or use smaller tiles"));
  }

  const Keeping& keeping_;
  const PackOptions& options_;
  const bool compact_;
  Kept& kept_;
  FreeRanges free_;
  absl::btree_set<std::pair<uint64_t, uint64_t>> by_size_;  // of the free ranges: size and offset
  absl::btree_map<uint64_t, TileIndex> held_;               // by offset
  absl::btree_map<uint64_t, Return> returns_;               // by offset
  std::vector<uint64_t> offset_;                            // by use
  std::vector<uint64_t> resident_;                          // by tile: offset
  std::vector<uint32_t> current_;                           // by tile: its use, or the gap after it
  std::vector<bool> in_use_;                                // by tile
  uint64_t cursor_ = 0;                                     // where the last frame in turn ended
};

}  // namespace

absl::StatusOr<std::vector<uint64_t>> Pack(const Keeping& keeping, const PackOptions& options,
                                           Kept* kept) {
  const Kept asked = *kept;
  auto offsets = Packer(keeping, options, /*compact=*/false, kept).Run();
  if (offsets.ok()) return offsets;
  *kept = asked;
  auto compact = Packer(keeping, options, /*compact=*/true, kept).Run();
  if (compact.ok() || !options.may_break) return compact;
  kept->assign(kept->size(), false);  // the leases alone
  return Packer(keeping, options, /*compact=*/true, kept).Run();
}

}  // namespace spillway::plan
