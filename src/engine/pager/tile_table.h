// SPDX-License-Identifier: Apache-2.0
//
// What each tile is. A tile is written down when it is registered, and stays where it is in memory,
// so that whoever was told of it under the engine's lock reads it without: the transfer thread, and
// the thread that makes plans.

#ifndef SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
#define SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "spillway/types.h"
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
  uint64_t own_place = 0;    // in pinned memory: see PageTable::HasOwnPlace
  std::optional<Tier> rest;  // see Placement
  Role role = Role::kParameter;
  bool transient = false;
  // Of the frame that it keeps where it rests, from the moment it has one.
  std::atomic<uint64_t> home = kNoFrame;

  uint64_t frame_bytes() const {
    return (size_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
  }
  // Whether it rests in one of the two arenas.
  bool has_home() const { return rest && *rest != Tier::kNvme; }
};

// What a plan must know of the tiles beside the table, at some moment.
struct TilesNow {
  const plan::TileBits& with_bytes;  // those that were written and not discarded since
  const plan::TileBits& placed;      // those that rest somewhere: see Placement
  uint64_t num_homes = 0;            // tiles that have a frame where they rest
  bool all_fit = false;              // see PageTable::AllFit
};

// The tile as the planner sees it.
plan::TraceTile TileOfTrace(const Tile& tile, bool has_bytes, bool all_fit);

// One thread adds at a time; others may read the tiles before a size that they were told.
class TileTable {
 public:
  TileIndex size() const { return size_; }
  // A new tile, of the next index, to be filled in before anyone is told of it.
  Tile& Add() {
    const size_t piece = PieceOf(size_);
    if (pieces_[piece] == nullptr) pieces_[piece] = std::make_unique<Tile[]>(kFirst << piece);
    return (*this)[size_++];
  }
  Tile& operator[](TileIndex tile) { return pieces_[PieceOf(tile)][IndexOf(tile)]; }
  const Tile& operator[](TileIndex tile) const { return pieces_[PieceOf(tile)][IndexOf(tile)]; }

 private:
  // Each piece has as many tiles as all before it and kFirst more.
  static constexpr size_t kFirst = 64;
  static size_t PieceOf(TileIndex tile) {
    return static_cast<size_t>(std::bit_width(tile / kFirst + 1)) - 1;
  }
  static size_t IndexOf(TileIndex tile) {
    return tile - kFirst * ((size_t{1} << PieceOf(tile)) - 1);
  }

  std::array<std::unique_ptr<Tile[]>, 27> pieces_;
  TileIndex size_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_TILE_TABLE_H_
