// SPDX-License-Identifier: Apache-2.0
//
// The constant properties of each tile. They are filled in when the tile is registered, and its
// address never changes. So a thread that learned of the tile under the engine's lock (the transfer
// thread, the thread that makes plans) reads them without the lock. Only `reserved_frame` is set
// later; it is atomic.

#ifndef SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
#define SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/engine/pager/arena_map.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// Where a tile's bytes begin in the store: a page of a tensor.
struct StorePlace {
  uint32_t tensor = 0;
  uint64_t first_page = 0;
};

struct Tile {
  static constexpr uint64_t kNoFrame = ~uint64_t{0}, kGone = kNoFrame - 1;

  uint64_t size_bytes = 0;
  StorePlace place;
  uint64_t own_place = 0;    // offset in pinned memory: see PageTable::HasOwnPlace
  std::optional<Tier> rest;  // the tier where it rests: see Placement
  Role role = Role::kParameter;
  bool transient = false;
  bool is_small = false;  // written together with others: see PagerOptions
  // Offset of its reserved frame in the tier where it rests, once it has that frame; kGone once the
  // tile is gone.
  std::atomic<uint64_t> reserved_frame = kNoFrame;

  uint64_t frame_bytes() const {
    return (size_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  }
  // Whether it rests in one of the two arenas.
  bool has_reserved_frame() const { return rest && *rest != Tier::kNvme; }
};

// The state of the tiles that planning needs in addition to the table, at one moment.
struct TilesNow {
  const plan::TileBits& with_bytes;  // tiles that were written and not discarded since
  uint64_t reserved_changes = 0;     // reserved frames that were taken or given back so far
  bool all_fit = false;              // see PageTable::AllFit
};

// Returns the tile's description in a trace, for the planner.
plan::TraceTile TileOfTrace(const Tile& tile, bool has_bytes, bool all_fit);

// A tile is filled in before its index is passed to another thread.
using TileTable = base::StableArray<Tile>;

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
