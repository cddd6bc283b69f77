// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of an arena are free and which are a tile's frame, at one position of the period that
// is packed. This is bookkeeping only: the packer decides where tiles lie and which tiles leave.

#ifndef SPILLWAY_PLAN_FRAMES_H_
#define SPILLWAY_PLAN_FRAMES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "src/plan/trace.h"

namespace spillway::plan {

class Frames {
 public:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  static constexpr TileIndex kNobody = ~TileIndex{0};
  using FreeRanges = absl::btree_map<uint64_t, uint64_t>;  // offset to bytes; neighbours are joined
  using FreeBySize = absl::btree_set<std::pair<uint64_t, uint64_t>>;  // bytes, offset
  using Held = absl::btree_map<uint64_t, TileIndex>;                  // by offset

  // `size_bytes`: the size of each tile's frame, by tile; must outlive this object.
  Frames(uint64_t capacity, const std::vector<uint64_t>& size_bytes);

  const FreeRanges& free() const { return free_; }
  const FreeBySize& free_by_size() const { return free_by_size_; }
  const Held& held() const { return held_; }
  // The offset of the tile's frame; kNowhere if it has none.
  uint64_t OffsetOf(TileIndex tile) const { return offset_[tile]; }

  // The lowest offset, not below `from`, at which `bytes` are free; kNowhere if there is none.
  uint64_t FirstFree(uint64_t from, uint64_t bytes) const;

  // REQUIRES: all bytes of the tile's frame are free there.
  void Occupy(uint64_t offset, TileIndex tile);
  // REQUIRES: the tile has a frame.
  void Free(TileIndex tile);

  // Visits the free ranges (whose tile is kNobody) and frames that begin at or after `from`, in
  // order of offset, while visit(offset, bytes, tile) returns true.
  template <typename Visit>
  void ForBlocks(uint64_t from, const Visit& visit) const {
    auto free = free_.lower_bound(from);
    auto held = held_.lower_bound(from);
    while (free != free_.end() || held != held_.end()) {
      if (held == held_.end() || (free != free_.end() && free->first < held->first)) {
        if (!visit(free->first, free->second, kNobody)) return;
        ++free;
      } else {
        if (!visit(held->first, size_bytes_[held->second], held->second)) return;
        ++held;
      }
    }
  }

 private:
  void AddFree(uint64_t offset, uint64_t size_bytes);
  void RemoveFree(uint64_t offset, uint64_t size_bytes);

  const std::vector<uint64_t>& size_bytes_;
  FreeRanges free_;
  FreeBySize free_by_size_;
  Held held_;
  std::vector<uint64_t> offset_;  // by tile
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_FRAMES_H_
