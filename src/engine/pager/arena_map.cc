// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/arena_map.h"

#include <algorithm>
#include <iterator>

#include "src/base/check.h"

namespace spillway::engine {

ArenaMap::ArenaMap(uint64_t size_bytes)
    : size_bytes_(size_bytes / kFrameAlignment * kFrameAlignment) {
  if (size_bytes_ == 0) return;
  segments_[0] = {size_bytes_, Kind::kFree, 0};
  free_by_size_.insert({size_bytes_, 0});
}

ArenaMap::Segments::const_iterator ArenaMap::At(uint64_t offset) const {
  return offset < size_bytes_ ? std::prev(segments_.upper_bound(offset)) : segments_.end();
}

std::vector<TileIndex> ArenaMap::TilesIn(uint64_t begin, uint64_t end) const {
  std::vector<TileIndex> tiles;
  for (auto it = At(begin); it != segments_.end() && it->first < end; ++it)
    if (it->second.kind == Kind::kFrame) tiles.push_back(it->second.tile);
  return tiles;
}

void ArenaMap::SplitAt(uint64_t offset) {
  const auto it = std::prev(segments_.upper_bound(offset));
  const uint64_t head_bytes = offset - it->first;
  if (head_bytes == 0 || head_bytes >= it->second.size_bytes) return;
  Segment tail = it->second;
  tail.size_bytes -= head_bytes;
  if (it->second.kind == Kind::kFree) {
    free_by_size_.erase({it->second.size_bytes, it->first});
    free_by_size_.insert({head_bytes, it->first});
    free_by_size_.insert({tail.size_bytes, offset});
  }
  it->second.size_bytes = head_bytes;
  segments_.emplace_hint(std::next(it), offset, tail);
}

void ArenaMap::SetKind(Iterator it, Kind kind, TileIndex tile) {
  Segment& segment = it->second;
  const bool was_free = segment.kind == Kind::kFree;
  const bool is_free = kind == Kind::kFree;
  if (was_free && !is_free) {
    free_by_size_.erase({segment.size_bytes, it->first});
    used_bytes_ += segment.size_bytes;
  } else if (!was_free && is_free) {
    free_by_size_.insert({segment.size_bytes, it->first});
    used_bytes_ -= segment.size_bytes;
  }
  segment.kind = kind;
  segment.tile = tile;
}

ArenaMap::Iterator ArenaMap::MergeFree(Iterator it) {
  auto absorb_next = [this](Iterator left) {
    auto right = std::next(left);
    if (right == segments_.end() || right->second.kind != Kind::kFree) return;
    free_by_size_.erase({left->second.size_bytes, left->first});
    free_by_size_.erase({right->second.size_bytes, right->first});
    left->second.size_bytes += right->second.size_bytes;
    free_by_size_.insert({left->second.size_bytes, left->first});
    segments_.erase(right);
  };
  absorb_next(it);
  if (it != segments_.begin() && std::prev(it)->second.kind == Kind::kFree) {
    --it;
    absorb_next(it);
  }
  return it;
}

std::optional<uint64_t> ArenaMap::FindFree(uint64_t size_bytes, uint64_t from) const {
  for (auto it = free_by_size_.lower_bound({size_bytes, 0}); it != free_by_size_.end(); ++it) {
    const auto [free_bytes, offset] = *it;
    const uint64_t start = std::max(offset, from);
    if (start + size_bytes <= offset + free_bytes) return start;
  }
  return std::nullopt;
}

std::optional<uint64_t> ArenaMap::Allocate(uint64_t size_bytes, TileIndex tile, uint64_t from) {
  const std::optional<uint64_t> offset = FindFree(size_bytes, from);
  if (offset) AllocateAt(*offset, size_bytes, tile);
  return offset;
}

bool ArenaMap::AllocateAt(uint64_t offset, uint64_t size_bytes, TileIndex tile) {
  const auto it = At(offset);
  if (it == segments_.end()) return false;
  const uint64_t end = it->first + it->second.size_bytes;
  if (it->second.kind != Kind::kFree || end < offset + size_bytes) return false;
  SplitAt(offset);
  SplitAt(offset + size_bytes);
  SetKind(segments_.find(offset), Kind::kFrame, tile);
  return true;
}

void ArenaMap::FreeInto(uint64_t offset, uint64_t window, uint64_t window_bytes,
                        TileIndex claimant) {
  auto it = segments_.find(offset);
  SPILLWAY_CHECK(it != segments_.end() && it->second.kind == Kind::kFrame);
  const uint64_t end = offset + it->second.size_bytes;
  if (window > offset) SplitAt(window);
  if (window + window_bytes < end) SplitAt(window + window_bytes);
  for (uint64_t at = offset; at < end;) {
    auto piece = segments_.find(at);
    at += piece->second.size_bytes;
    if (piece->first >= window && piece->first < window + window_bytes) {
      SetKind(piece, Kind::kClaimed, claimant);
    } else {
      SetKind(piece, Kind::kFree, 0);
      MergeFree(piece);
    }
  }
}

void ArenaMap::ClaimFree(uint64_t window, uint64_t window_bytes, TileIndex claimant) {
  const uint64_t end = window + window_bytes;
  for (auto it = std::prev(segments_.upper_bound(window)); it != segments_.end() && it->first < end;
       ++it) {
    if (it->second.kind != Kind::kFree) continue;
    if (it->first < window) {
      SplitAt(window);
      ++it;
    }
    if (it->first + it->second.size_bytes > end) SplitAt(end);
    SetKind(it, Kind::kClaimed, claimant);
  }
}

void ArenaMap::ClaimedToFrame(uint64_t window, uint64_t window_bytes, TileIndex claimant) {
  uint64_t reserved_bytes = 0;
  for (auto it = segments_.find(window);
       it != segments_.end() && it->first < window + window_bytes;) {
    SPILLWAY_CHECK(it->second.kind == Kind::kClaimed && it->second.tile == claimant);
    reserved_bytes += it->second.size_bytes;
    it = segments_.erase(it);
  }
  SPILLWAY_CHECK(reserved_bytes == window_bytes);
  segments_[window] = {window_bytes, Kind::kFrame, claimant};
}

void ArenaMap::GiveUpClaim(uint64_t window, uint64_t window_bytes, TileIndex claimant) {
  auto it = std::prev(segments_.upper_bound(window));
  while (it != segments_.end() && it->first < window + window_bytes) {
    if (it->second.kind == Kind::kClaimed && it->second.tile == claimant) {
      SetKind(it, Kind::kFree, 0);
      it = MergeFree(it);
    }
    ++it;
  }
}

}  // namespace spillway::engine
