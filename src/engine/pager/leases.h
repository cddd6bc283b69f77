// SPDX-License-Identifier: Apache-2.0
//
// The leases on each tile: readers or one writer in each tier, of which some are only waited for by
// a stream (a *drain*: the holder let go, its stream has not come so far). Readers enter without a
// lock where the pager has opened a tile's count (lease_table.h); the pager closes a count before
// it does anything that a lease must not meet.

#ifndef SPILLWAY_ENGINE_PAGER_LEASES_H_
#define SPILLWAY_ENGINE_PAGER_LEASES_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "spillway/types.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/lease_table.h"

namespace spillway::engine {

// Externally synchronised, but for what LeaseTable says of readers.
class Leases {
 public:
  // Where readers enter.
  LeaseTable& table() { return table_; }
  const LeaseTable& table() const { return table_; }
  void AddTile() { table_.AddTile(); }

  // --- Changes ---
  void Take(TileIndex tile, Tier tier, Access access) {
    table_.count(tile, tier).Take();
    ++num_held_;
    if (Writes(access)) busy_[tile].writer = true;
  }
  // A reader entered the table by itself.
  void Entered() { ++num_held_; }
  // The holder lets go while its stream still uses the bytes; End follows with `drained`.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  void End(TileIndex tile, Tier tier, Access access, bool drained);
  // No reader enters from now on. Whether there is no lease.
  bool Close(TileIndex tile) { return table_.Close(tile); }
  bool Close(TileIndex tile, Tier tier) { return table_.count(tile, tier).Close(); }
  bool CloseAll() { return table_.CloseAll(); }
  // Whether a lease may be had beside those that there are. For a writer no reader enters any more.
  // Work on the stream on which a writer's drain is comes after that writer.
  bool Admit(TileIndex tile, Tier tier, Access access, StreamId stream);

  // --- What there is ---
  uint32_t held(TileIndex tile, Tier tier) const { return table_.leases(tile, tier); }
  bool IsLeased(TileIndex tile) const {
    return held(tile, Tier::kDevice) + held(tile, Tier::kPinned) > 0;
  }
  // Of them, drains.
  uint32_t draining(TileIndex tile, Tier tier) const;
  // A holder has not let go.
  bool HasHolder(TileIndex tile, Tier tier) const {
    const uint32_t leases = held(tile, tier);
    return leases > 0 && leases > draining(tile, tier);
  }
  bool HasHolder(TileIndex tile) const {
    return HasHolder(tile, Tier::kDevice) || HasHolder(tile, Tier::kPinned);
  }
  // A writer holds the tile, or its drain is on the way.
  bool IsWritten(TileIndex tile) const {
    const auto found = busy_.find(tile);
    return found != busy_.end() && (found->second.writer || found->second.written_drains > 0);
  }
  int64_t num_held() const { return num_held_; }
  // Holders that let go, and drains that ended.
  uint64_t num_ended() const { return num_ended_; }
  int64_t num_draining() const { return num_draining_; }

 private:
  // Of a tile with a writer or drains.
  struct Busy {
    bool writer = false;                 // it has not let go
    std::array<uint32_t, 2> draining{};  // drains, by tier
    uint32_t written_drains = 0;         // of writers
    StreamId stream = kNoStream;         // of these
    Tier tier = Tier::kDevice;
    bool is_mixed = false;  // they are of several streams or tiers
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
