// SPDX-License-Identifier: Apache-2.0
//
// Leases that need no lock. Every tile has a count of its leases in the device and in the pinned
// tier. While a count is open, a reader takes a lease in one atomic step, whatever goes on
// meanwhile; the pager closes a count before it does anything that a lease must not meet,
// and a count of a closed tile only falls.
//
// The owner hears of such leases afterwards, from a list to which each is added once it is taken.
// Leases end with the owner, so it never hears of an end before the beginning.

#ifndef SPILLWAY_ENGINE_PAGER_LEASE_TABLE_H_
#define SPILLWAY_ENGINE_PAGER_LEASE_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/engine/pager/arena_map.h"

namespace spillway::engine {

// A count that can be closed. Thread-safe as each method says.
class LeaseCount {
 public:
  // One more, if the count is open. Any thread.
  bool TryTake() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    while ((seen & kClosed) == 0) {
      if (word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  // The owner's: under one lock.
  void Take() { word_.fetch_add(1, std::memory_order_relaxed); }
  void End() { word_.fetch_sub(1, std::memory_order_relaxed); }
  void Open() { word_.fetch_and(~kClosed, std::memory_order_release); }
  // Whether there are none, and none come until Open. If there are some, they stay, and no more
  // come.
  bool Close() { return (word_.fetch_or(kClosed, std::memory_order_relaxed) & ~kClosed) == 0; }
  bool is_open() const { return (word_.load(std::memory_order_relaxed) & kClosed) == 0; }
  // Of an open count: at least as many as the owner knows of.
  uint32_t leases() const { return word_.load(std::memory_order_relaxed) & ~kClosed; }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  std::atomic<uint32_t> word_ = kClosed;
};

// A lease for reading that was taken without asking.
struct SharedLease {
  TileIndex tile = 0;
  Tier tier = Tier::kDevice;
  int64_t ns = 0;  // when, on the caller's clock
  std::thread::id thread = {};
};

class LeaseTable {
 public:
  ~LeaseTable();

  // --- Any thread, of tiles that it was told of ---
  // The offset of the tile's bytes in its tier, if a lease could be had so. It is to be told to the
  // owner by Tell, before anybody ends it.
  std::optional<uint64_t> TryTake(TileIndex tile, Tier tier) {
    Place& place = places_[tile][At(tier)];
    if (!place.count.TryTake()) return std::nullopt;
    return place.offset;
  }
  void Tell(const SharedLease& lease);

  // --- The owner's: under one lock ---
  void AddTile() { places_.emplace_back(); }
  LeaseCount& count(TileIndex tile, Tier tier) { return places_[tile][At(tier)].count; }
  const LeaseCount& count(TileIndex tile, Tier tier) const { return places_[tile][At(tier)].count; }
  uint32_t leases(TileIndex tile, Tier tier) const { return count(tile, tier).leases(); }
  // From now on readers find the tile's bytes there.
  void Open(TileIndex tile, Tier tier, uint64_t offset);
  // LeaseCount::Close of both tiers.
  bool Close(TileIndex tile);
  // Of all tiles.
  bool CloseAll();
  // What was told since the last call, the first first; null: nothing was. The caller takes each by
  // Pop, which goes on to the next.
  struct Told;
  Told* TakeTold();
  SharedLease Pop(Told** told);

 private:
  struct Place {
    LeaseCount count;
    uint64_t offset = 0;  // written while the count is closed
  };

  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  base::StableArray<std::array<Place, 2>> places_;  // by TileIndex
  std::atomic<Told*> told_ = nullptr;               // the last first
  std::atomic<Told*> spare_ = nullptr;              // one that Tell may use again
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_LEASE_TABLE_H_
