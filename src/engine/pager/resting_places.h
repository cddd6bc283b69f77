// SPDX-License-Identifier: Apache-2.0
//
// Where tiles rest in memory. The bottom of each arena is left to reserved frames (see Placement).
// Where pinned memory has room for all tiles, each of the others has a place of its own there, from
// the top down. Pure; it has no frames.

#ifndef SPILLWAY_ENGINE_PAGER_RESTING_PLACES_H_
#define SPILLWAY_ENGINE_PAGER_RESTING_PLACES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/engine/pager/tile_table.h"
#include "src/plan/tile_bits.h"

namespace spillway::engine {

class RestingPlaces {
 public:
  explicit RestingPlaces(uint64_t pinned_bytes);

  // The next tile, of which all else is filled in.
  void Add(TileIndex index, Tile* tile);

  // The bottom of the tier's arena, which is left to reserved frames.
  uint64_t reserved_bytes(Tier tier) const { return reserved_bytes_[At(tier)]; }
  // Pinned memory has room for all tiles at once, until more are added.
  bool AllFit() const { return frames_bytes_ <= pinned_bytes_; }
  // Whether the tile has a place in pinned memory that no other takes; those that rest there lie
  // below.
  bool HasOwnPlace(const Tile& tile) const { return AllFit() && tile.rest != Tier::kPinned; }
  // Tiles that rest somewhere: see Placement. Few bytes are read to ask for one.
  const plan::TileBits& placed() const { return placed_; }

 private:
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  const uint64_t pinned_bytes_;
  uint64_t frames_bytes_ = 0;  // what all tiles would take in one tier
  uint64_t own_begin_;         // of own places
  std::array<uint64_t, 2> reserved_bytes_ = {};
  plan::TileBits placed_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_RESTING_PLACES_H_
