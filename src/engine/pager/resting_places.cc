// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/resting_places.h"

#include "src/base/bytes.h"

namespace spillway::engine {

RestingPlaces::RestingPlaces(uint64_t pinned_bytes)
    : pinned_bytes_(pinned_bytes), own_begin_(base::RoundDown(pinned_bytes, kFrameAlignment)) {}

void RestingPlaces::Add(TileIndex index, Tile* tile) {
  placed_.Set(index, tile->rest.has_value());
  frames_bytes_ += tile->frame_bytes();
  if (tile->has_reserved_frame()) {
    reserved_bytes_[At(*tile->rest)] += tile->frame_bytes();
    ++not_taken_[At(*tile->rest)];
  }
  if (!HasOwnPlace(*tile)) return;
  own_begin_ -= tile->frame_bytes();
  tile->own_place = own_begin_;
}

void RestingPlaces::Remove(const Tile& tile) {
  if (!tile.has_reserved_frame()) return;
  reserved_bytes_[At(*tile.rest)] -= tile.frame_bytes();
  if (tile.reserved_frame == Tile::kNoFrame) --not_taken_[At(*tile.rest)];
}

}  // namespace spillway::engine
