// SPDX-License-Identifier: Apache-2.0
//
// Leases that are taken without a lock. Every tile has two lease counts, one for the device tier
// and one for the pinned tier. While a count is open, any thread can take a read lease in one
// atomic step. The pager closes a count before it does anything that must not overlap with a new
// lease; only the owner can add to a closed count.
//
// The reader then adds its lease to a log, which the owner drains later. Leases are ended through
// the owner, which drains the log first, so it never processes the end of a lease before its
// beginning.

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

// A lease count that can be closed to readers. Each method says which threads may call it.
class LeaseCount {
 public:
  // Adds a lease if the count is open. Any thread.
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

  // The methods below are for the owner, under one lock.
  void Take() { word_.fetch_add(1, std::memory_order_relaxed); }
  void End() { word_.fetch_sub(1, std::memory_order_relaxed); }
  void Open() { word_.fetch_and(~kClosed, std::memory_order_release); }
  // Closes the count: TryTake fails until Open, and leases that are held stay. Returns whether
  // there are none.
  bool Close() { return (word_.fetch_or(kClosed, std::memory_order_relaxed) & ~kClosed) == 0; }
  bool is_open() const { return (word_.load(std::memory_order_relaxed) & kClosed) == 0; }
  // The number of leases. It may include leases of readers that the owner has not recorded yet.
  uint32_t leases() const { return word_.load(std::memory_order_relaxed) & ~kClosed; }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  std::atomic<uint32_t> word_ = kClosed;
};

// A read lease that was taken without the lock.
struct SharedLease {
  TileIndex tile = 0;
  Tier tier = Tier::kDevice;
  int64_t ns = 0;  // when it was taken, on the caller's clock
  std::thread::id thread = {};
  uint64_t thread_serial = 0;  // for the timeline: see TimelineRecorder::ThisSerial
};

class LeaseTable {
 public:
  ~LeaseTable();

  // --- Any thread that received the tile's index after AddTile ---
  // Takes a read lease and returns the offset of the tile's bytes in the tier, or none if the count
  // is closed. The caller must report the lease with Log before the lease is ended.
  std::optional<uint64_t> TryTake(TileIndex tile, Tier tier) {
    Place& place = places_[tile][At(tier)];
    if (!place.count.TryTake()) return std::nullopt;
    return place.offset;
  }
  // Adds the lease to the log.
  void Log(const SharedLease& lease);

  // --- The owner, under one lock ---
  void AddTile() { places_.emplace_back(); }
  LeaseCount& count(TileIndex tile, Tier tier) { return places_[tile][At(tier)].count; }
  const LeaseCount& count(TileIndex tile, Tier tier) const { return places_[tile][At(tier)].count; }
  uint32_t leases(TileIndex tile, Tier tier) const { return count(tile, tier).leases(); }
  // Opens the count: readers find the tile's bytes at `offset` from now on. Does nothing if the
  // count is open.
  void Open(TileIndex tile, Tier tier, uint64_t offset);
  // Closes the tile's counts in both tiers. Returns whether there are no leases.
  bool Close(TileIndex tile);
  // Closes the counts of all tiles. Returns whether there are no leases.
  bool CloseAll();
  // Returns the leases that were logged since the last call, oldest first, or null if there are
  // none. The caller takes each with Pop, which advances `entry` to the next one and returns the
  // lease.
  struct LogEntry;
  LogEntry* TakeLog();
  SharedLease Pop(LogEntry** entry);

 private:
  struct Place {
    LeaseCount count;
    uint64_t offset = 0;  // written while the count is closed
  };

  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  base::StableArray<std::array<Place, 2>> places_;  // by TileIndex
  std::atomic<LogEntry*> log_ = nullptr;            // newest first
  std::atomic<LogEntry*> spare_ = nullptr;          // one that Log may reuse
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_LEASE_TABLE_H_
