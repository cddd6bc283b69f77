// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/tile_table.h"

namespace spillway::engine {

plan::TraceTile TileOfTrace(const Tile& tile, bool has_bytes, bool all_fit) {
  plan::TraceTile of{.size_bytes = tile.size_bytes,
                     .role = tile.role,
                     .transient = tile.transient,
                     .stored = has_bytes,
                     .rest = tile.rest};
  const uint64_t home = tile.home;
  if (!tile.rest && all_fit) of.home = plan::Home{Tier::kPinned, tile.own_place};
  if (tile.has_home() && home != Tile::kNoFrame) of.home = plan::Home{*tile.rest, home};
  return of;
}

}  // namespace spillway::engine
