// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/tile_table.h"

namespace spillway::engine {

plan::TraceTile TileOfTrace(const Tile& tile, bool has_bytes, bool all_fit) {
  plan::TraceTile of{.size_bytes = tile.size_bytes,
                     .role = tile.role,
                     .transient = tile.transient,
                     .stored = has_bytes,
                     .rest = tile.rest};
  const uint64_t offset = tile.reserved_frame;
  if (!tile.rest && all_fit) of.reserved_frame = plan::ReservedFrame{Tier::kPinned, tile.own_place};
  if (offset == Tile::kGone) {
    of.rest.reset();
  } else if (tile.has_reserved_frame() && offset != Tile::kNoFrame) {
    of.reserved_frame = plan::ReservedFrame{*tile.rest, offset};
  }
  return of;
}

}  // namespace spillway::engine
