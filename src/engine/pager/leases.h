// SPDX-License-Identifier: Apache-2.0
//
// The leases on each tile: readers in either tier, or one writer. A lease is a *drain* when its
// holder has released it but its stream may still use the bytes.

#ifndef SPILLWAY_ENGINE_PAGER_LEASES_H_
#define SPILLWAY_ENGINE_PAGER_LEASES_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/engine/pager/action.h"

namespace spillway::engine {

// Externally synchronised.
class Leases {
 public:
  void AddTile() { held_.emplace_back(); }
  // Prefetches the tile's counts into the CPU's cache.
  void Prefetch(TileIndex tile) const { __builtin_prefetch(&held_[tile]); }

  // --- Changes ---
  void Take(TileIndex tile, Tier tier, Access access) {
    ++held_[tile][At(tier)];
    ++num_held_;
    if (Writes(access)) busy_[tile].writer = true;
  }
  // The holder releases the lease while its stream still uses the bytes. End follows with
  // `drained`.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  void End(TileIndex tile, Tier tier, Access access, bool drained);

  // --- Queries ---
  // Whether a lease may be granted beside the existing ones. Beside a writer's drain, only a lease
  // on the same stream and tier may be granted: its work runs after that writer's.
  bool Admits(TileIndex tile, Tier tier, Access access, StreamId stream) const;
  uint32_t held(TileIndex tile, Tier tier) const { return held_[tile][At(tier)]; }
  bool IsLeased(TileIndex tile) const {
    return held(tile, Tier::kDevice) + held(tile, Tier::kPinned) > 0;
  }
  // How many of the held leases are drains.
  uint32_t draining(TileIndex tile, Tier tier) const;
  // Whether a holder has not released its lease.
  bool HasHolder(TileIndex tile, Tier tier) const {
    const uint32_t leases = held(tile, tier);
    return leases > 0 && leases > draining(tile, tier);
  }
  bool HasHolder(TileIndex tile) const {
    return HasHolder(tile, Tier::kDevice) || HasHolder(tile, Tier::kPinned);
  }
  // Whether a writer holds the tile or is draining.
  bool IsWritten(TileIndex tile) const {
    const auto found = busy_.find(tile);
    return found != busy_.end() && (found->second.writer || found->second.written_drains > 0);
  }
  int64_t num_held() const { return num_held_; }
  // How many leases were released, plus how many drains ended.
  uint64_t num_ended() const { return num_ended_; }
  int64_t num_draining() const { return num_draining_; }

 private:
  // State of a tile that has a writer or drains.
  struct Busy {
    bool writer = false;                 // a writer holds the tile
    std::array<uint32_t, 2> draining{};  // drains, by tier
    uint32_t written_drains = 0;         // drains of writers
    StreamId stream = kNoStream;         // stream of the writers' drains
    Tier tier = Tier::kDevice;           // tier of the writers' drains
    bool is_mixed = false;               // the writers' drains are on several streams or tiers
    bool is_over() const { return !writer && draining[0] + draining[1] == 0; }
  };
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  base::StableArray<std::array<uint32_t, 2>> held_;  // by tile, then by tier
  absl::flat_hash_map<TileIndex, Busy> busy_;
  int64_t num_held_ = 0;
  uint64_t num_ended_ = 0;
  int64_t num_draining_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_LEASES_H_
