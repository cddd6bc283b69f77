// SPDX-License-Identifier: Apache-2.0
//
// Checksums of tiles in pinned memory that pass between the store and an update, which computes
// them while it has the bytes in its caches: those of a tile that was read and not compared yet,
// and those of a tile that was written and is to go to NVMe. At any time a tile has one kind or
// none. They may outlive the tile's frame: they are cleared when the frame is filled again, and
// when somebody leases it for writing.

#ifndef SPILLWAY_ENGINE_TILE_CHECKSUMS_H_
#define SPILLWAY_ENGINE_TILE_CHECKSUMS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "spillway/types.h"
#include "src/base/mutex.h"
#include "src/base/stable_array.h"
#include "src/engine/pager/arena_map.h"

namespace spillway::engine {

// Thread-safe. Checksums are those of the tile's pages, in order. A tile takes three bytes, and
// eight more for each page while it has checksums.
class TileChecksums {
 public:
  enum class Kind : uint8_t {
    kNone,      // there is nothing to compare, and no checksum is known
    kExpected,  // of the copy on NVMe: the bytes in pinned memory must be compared before their use
    kComputed,  // of the bytes in pinned memory, which nobody has written since
  };

  // For the next tile. REQUIRES: one thread adds at a time.
  void AddTile() { states_.emplace_back(); }

  Kind KindOf(TileIndex tile) const {
    return static_cast<Kind>(states_[tile].kind.load(std::memory_order_acquire));
  }
  // REQUIRES: the tile has some that no other thread takes away meanwhile.
  std::vector<uint64_t> Of(TileIndex tile) const;
  void Set(TileIndex tile, Kind kind, std::vector<uint64_t> checksums);
  void Clear(TileIndex tile);

  // Whether the next read of the tile is left to its user to compare. It is so when an update has
  // asked for the tile, until somebody else has to compare it; and never again for a tile that has
  // gone to the device uncompared, because its copy waits for the comparison.
  bool IsComparedByUser(TileIndex tile) const {
    const State& state = states_[tile];
    return state.by_user.load(std::memory_order_relaxed) &&
           !state.to_device.load(std::memory_order_relaxed);
  }
  void SetComparedByUser(TileIndex tile, bool by_user) {
    states_[tile].by_user.store(by_user, std::memory_order_relaxed);
  }
  void NoteGoesToDevice(TileIndex tile) {
    states_[tile].to_device.store(true, std::memory_order_relaxed);
  }

 private:
  struct State {
    std::atomic<uint8_t> kind = 0;
    std::atomic<bool> by_user = false;
    std::atomic<bool> to_device = false;
  };

  base::StableArray<State> states_;
  mutable base::Mutex mu_;
  absl::flat_hash_map<TileIndex, std::vector<uint64_t>> checksums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TILE_CHECKSUMS_H_
