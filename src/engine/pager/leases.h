// SPDX-License-Identifier: Apache-2.0
//
// The leases on each tile: readers in either tier, or one writer. A lease is a *drain* when its
// holder has released it but its stream may still use the bytes. Readers take leases without a lock
// where the pager has opened a tile's count (lease_table.h); the pager closes a count before it
// does anything that must not overlap with a new lease.

#ifndef SPILLWAY_ENGINE_PAGER_LEASES_H_
#define SPILLWAY_ENGINE_PAGER_LEASES_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "spillway/types.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/lease_table.h"

namespace spillway::engine {

// Externally synchronised, except for the methods of table() that any thread may call.
class Leases {
 public:
  // The table from which readers take leases without a lock.
  LeaseTable& table() { return table_; }
  const LeaseTable& table() const { return table_; }
  void AddTile() { table_.AddTile(); }

  // --- Changes ---
  void Take(TileIndex tile, Tier tier, Access access) {
    table_.count(tile, tier).Take();
    ++num_held_;
    if (Writes(access)) busy_[tile].writer = true;
  }
  // Counts a lease that a reader took from the table.
  void Entered() { ++num_held_; }
  // The holder releases the lease while its stream still uses the bytes. End follows with
  // `drained`.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  void End(TileIndex tile, Tier tier, Access access, bool drained);
  // Closes the counts: no reader takes a lease from the table from now on. Returns whether there is
  // no lease.
  bool Close(TileIndex tile) { return table_.Close(tile); }
  bool Close(TileIndex tile, Tier tier) { return table_.count(tile, tier).Close(); }
  bool CloseAll() { return table_.CloseAll(); }
  // Whether a lease may be granted beside the existing ones. For a writer, it also closes the
  // tile's counts. Beside a writer's drain, only a lease on the same stream and tier may be
  // granted: its work runs after that writer's.
  bool Admit(TileIndex tile, Tier tier, Access access, StreamId stream);

  // --- Queries ---
  uint32_t held(TileIndex tile, Tier tier) const { return table_.leases(tile, tier); }
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

  LeaseTable table_;
  absl::flat_hash_map<TileIndex, Busy> busy_;
  int64_t num_held_ = 0;
  uint64_t num_ended_ = 0;
  int64_t num_draining_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_LEASES_H_
