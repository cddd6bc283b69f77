// SPDX-License-Identifier: Apache-2.0
//
// What each tile is. A tile is written down when it is registered, and stays where it is in memory,
// so that whoever was told of it under the engine's lock reads it without: the transfer thread, and
// the thread that makes plans.

#ifndef SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
#define SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/engine/pager/arena_map.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// Where a tile rests in the store: from a page of a tensor on.
struct StorePlace {
  uint32_t tensor = 0;
  uint64_t first_page = 0;
};

struct Tile {
  static constexpr uint64_t kNoFrame = ~uint64_t{0};

  uint64_t size_bytes = 0;
  StorePlace place;
  uint64_t own_place = 0;    // in pinned memory: see RestingPlaces
  std::optional<Tier> rest;  // see Placement
  Role role = Role::kParameter;
  bool transient = false;
  bool is_small = false;  // it is written together with others: see PagerOptions
  // Of the frame that it keeps where it rests, from the moment it has one.
  std::atomic<uint64_t> reserved_frame = kNoFrame;

  uint64_t frame_bytes() const {
    return (size_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  }
  // Whether it rests in one of the two arenas.
  bool has_reserved_frame() const { return rest && *rest != Tier::kNvme; }
};

// What a plan must know of the tiles beside the table, at some moment.
struct TilesNow {
  const plan::TileBits& with_bytes;  // those that were written and not discarded since
  const plan::TileBits& placed;      // those that rest somewhere: see Placement
  uint64_t num_reserved_frames = 0;  // tiles that have a frame where they rest
  bool all_fit = false;              // see RestingPlaces
};

// The tile as the planner sees it.
plan::TraceTile TileOfTrace(const Tile& tile, bool has_bytes, bool all_fit);

// A tile is filled in before anyone is told of it.
using TileTable = base::StableArray<Tile>;

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
