// SPDX-License-Identifier: Apache-2.0
//
// The places in memory where tiles rest. The bottom of each arena is left to reserved frames (see
// Placement) until all of them are taken. If pinned memory has room for all tiles, each tile that
// does not rest there has a place of its own in it; these places are assigned from the top down.
// Pure arithmetic on offsets; frames are allocated elsewhere.

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

  // Adds the next tile, and sets `own_place` if the tile has one. REQUIRES: the tile's other fields
  // are set.
  void Add(TileIndex index, Tile* tile);
  // Gives back the room for the reserved frame of a tile that is gone. Own places are not given
  // back: AllFit counts every tile that there was. REQUIRES: Tile::reserved_frame is still as it
  // was.
  void Remove(const Tile& tile);
  // A tile with the resting tier takes its reserved frame, perhaps not in the range for them.
  void FrameTaken(Tier tier) { --not_taken_[At(tier)]; }

  // Size of all reserved frames, which is the end of the range at the bottom of the tier's arena
  // that is left to them.
  uint64_t reserved_bytes(Tier tier) const { return reserved_bytes_[At(tier)]; }
  // The end of the range that other frames avoid now. Once all reserved frames are taken, other
  // frames may lie between them.
  uint64_t avoided_bytes(Tier tier) const {
    return not_taken_[At(tier)] > 0 ? reserved_bytes(tier) : 0;
  }
  // Whether pinned memory has room for all tiles at once. Adding tiles can end that.
  bool AllFit() const { return frames_bytes_ <= pinned_bytes_; }
  // Whether the tile has a place in pinned memory that is no other tile's. Tiles that rest in
  // pinned memory have none: their reserved frames lie below these places.
  bool HasOwnPlace(const Tile& tile) const { return AllFit() && tile.rest != Tier::kPinned; }
  // Tiles that have a resting tier: see Placement. A lookup reads few bytes.
  const plan::TileBits& placed() const { return placed_; }

 private:
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  const uint64_t pinned_bytes_;
  uint64_t frames_bytes_ = 0;  // the frames of all tiles together, those that are gone included
  uint64_t own_begin_;         // the lowest own place
  std::array<uint64_t, 2> reserved_bytes_ = {};
  std::array<uint64_t, 2> not_taken_ = {};  // tiles that do not have their reserved frame yet
  plan::TileBits placed_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_RESTING_PLACES_H_
