// SPDX-License-Identifier: Apache-2.0

#include "src/engine/tile_checksums.h"

#include <utility>

namespace spillway::engine {

using base::MutexLock;

std::vector<uint64_t> TileChecksums::Of(TileIndex tile) const {
  MutexLock lock(&mu_);
  const auto found = checksums_.find(tile);
  return found != checksums_.end() ? found->second : std::vector<uint64_t>();
}

void TileChecksums::Set(TileIndex tile, Kind kind, std::vector<uint64_t> checksums) {
  MutexLock lock(&mu_);
  checksums_[tile] = std::move(checksums);
  states_[tile].kind.store(static_cast<uint8_t>(kind), std::memory_order_release);
}

void TileChecksums::Clear(TileIndex tile) {
  if (KindOf(tile) == Kind::kNone) return;
  MutexLock lock(&mu_);
  checksums_.erase(tile);
  states_[tile].kind.store(static_cast<uint8_t>(Kind::kNone), std::memory_order_release);
}

}  // namespace spillway::engine
