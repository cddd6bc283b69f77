// SPDX-License-Identifier: Apache-2.0
//
// The checksums of tiles in pinned memory that pass between the store and whoever reads or writes
// the bytes with a CPU: an optimizer update, or a copy to or from the host's device tier. Both
// compute checksums while the bytes are in their caches. The checksums are either those of a tile
// that was read and not compared yet, or those of a tile that was written and will go to NVMe. At
// any time a tile has one kind or none. Checksums may outlive the tile's frame: they are cleared
// when the frame is filled again, and when a caller leases the tile for writing.

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

// Thread-safe. Checksums are those of the tile's pages, in order. A tile takes four bytes of
// memory, and eight more for each page while it has checksums.
class TileChecksums {
 public:
  enum class Kind : uint8_t {
    kNone,      // there is nothing to compare, and no checksum is known
    kExpected,  // of the copy on NVMe: the bytes in pinned memory must be compared before their use
    kComputed,  // of the bytes in pinned memory, which have not been written since
  };

  // Adds the next tile. REQUIRES: one thread adds at a time.
  void AddTile() { states_.emplace_back(); }

  Kind KindOf(TileIndex tile) const {
    return static_cast<Kind>(states_[tile].kind.load(std::memory_order_acquire));
  }
  // The tile's checksums; empty if it has none, which may be because another thread cleared them.
  std::vector<uint64_t> Of(TileIndex tile) const;
  void Set(TileIndex tile, Kind kind, std::vector<uint64_t> checksums);
  void Clear(TileIndex tile);

  // Whether the tile's next read is left to its user to compare. It is true after an update
  // requests the tile or a CPU copies it to the device, until another caller must compare it. It is
  // false for good after the tile was compared for a GPU's copy, because such a copy waits for the
  // comparison.
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

  // Records that a CPU copies the tile out of the device tier. Returns whether the copy is to hash
  // it: if the bytes of the copy before went to NVMe as they were copied, these will probably go
  // there, too. One thread calls NoteCopyOut and NoteWrite.
  bool NoteCopyOut(TileIndex tile) {
    LastCopyOut& last = states_[tile].last_copy_out;
    const bool hashes = last == LastCopyOut::kWritten;
    last = hashes ? LastCopyOut::kHashed : LastCopyOut::kNotHashed;
    return hashes;
  }
  // Records that the tile is written to NVMe. `was_hashed`: its checksums were known.
  void NoteWrite(TileIndex tile, bool was_hashed) {
    LastCopyOut& last = states_[tile].last_copy_out;
    if (last == LastCopyOut::kHashed)
      last = was_hashed ? LastCopyOut::kWritten : LastCopyOut::kNone;
    if (last == LastCopyOut::kNotHashed) last = LastCopyOut::kWritten;
  }

 private:
  // What has become of the bytes that were last copied out of the device tier.
  enum class LastCopyOut : uint8_t {
    kNone,       // there is no such copy, or a caller changed the bytes that it had hashed
    kNotHashed,  // they were not hashed, and are in memory alone
    kHashed,     // they were hashed, and are in memory alone
    kWritten,    // they were written to NVMe
  };
  struct State {
    std::atomic<uint8_t> kind = 0;
    std::atomic<bool> by_user = false;
    std::atomic<bool> to_device = false;
    LastCopyOut last_copy_out = LastCopyOut::kNone;
  };

  base::StableArray<State> states_;
  mutable base::Mutex mu_;
  absl::flat_hash_map<TileIndex, std::vector<uint64_t>> checksums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TILE_CHECKSUMS_H_
