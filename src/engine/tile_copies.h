// SPDX-License-Identifier: Apache-2.0
//
// Copies of tiles between pinned memory and the device, on a stream for each direction. If a CPU
// makes the copies (the device is the host's), they compare and hash the pages that pass through
// its caches: bytes that were read and not compared yet, and bytes that will probably go to NVMe.

#ifndef SPILLWAY_ENGINE_TILE_COPIES_H_
#define SPILLWAY_ENGINE_TILE_COPIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/busy_meter.h"
#include "src/base/mutex.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/tile_checksums.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// One thread starts copies and grants leases.
class TileCopies {
 public:
  // Its functions are called without a lock, on that thread or on a thread of the device runtime.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnCopied(TileIndex tile, const absl::Status& status) = 0;
    // A lease's copy was launched; `arrival` occurs when it ends, and is null if it has ended. If
    // `status` is not ok, the copy was not launched, found a damaged page, or its end could not be
    // marked.
    virtual void OnLaunched(const Action& grant, absl::Status status,
                            tiers::EventHandle arrival) = 0;
    // The wait for a copy failed, so it may still be running.
    virtual void OnFailedWait(const absl::Status& status) = 0;
  };
  struct Parts {
    tiers::DeviceRuntime* runtime = nullptr;
    std::byte* pinned = nullptr;  // the arenas
    std::byte* device = nullptr;
    uint64_t page_bytes = 0;  // of the store; 0 without one
    TileChecksums* checksums = nullptr;
    // Returns when a page in the tile's frame of pinned memory has the checksum, if need be after
    // another read, or with the error. Called on a thread of the device runtime.
    std::function<absl::Status(const Tile& tile, uint64_t page, uint64_t checksum,
                               std::byte* frame)>
        read_again;
  };

  TileCopies(Parts parts, Listener* listener);
  // REQUIRES: no copy is in flight.
  ~TileCopies();
  TileCopies(const TileCopies&) = delete;
  TileCopies& operator=(const TileCopies&) = delete;

  // Creates the streams.
  absl::Status Start();

  // Whether the tile's bytes in pinned memory must be compared before a copy to the device starts.
  bool MustCompareBefore(TileIndex tile) const;
  // Starts a kCopyIn or a kCopyOut. Its end is reported, also if it cannot be launched.
  void Copy(const Action& action, const Tile& tile);
  // Reports a kCopyIn that failed before it could start.
  void Fail(const Action& copy_in, const absl::Status& status);
  // Grants a lease of a tile whose kCopyIn was started before. If that compares the tile, the lease
  // is granted when it has ended.
  void Grant(const Action& grant);

  base::LinkBusy busy(Transfer copy) const;

 private:
  // Of a copy to the device that compares its tile.
  struct Comparison {
    absl::Status status;         // written before the copy ends
    std::vector<Action> grants;  // wait for its end; guarded by mu_
  };

  static size_t Way(const Action& action) { return action.Is(Transfer::kCopyIn) ? 0 : 1; }
  std::shared_ptr<Comparison> Compares(const Action& action);
  absl::Status Launch(const Action& action, const Tile& tile, Comparison* comparison);
  absl::Status CopyCompared(TileIndex index, const Tile& tile, std::byte* pinned,
                            std::byte* device) const;
  void CopyHashed(TileIndex index, uint64_t size_bytes, std::byte* pinned,
                  const std::byte* device) const;
  void EndComparison(TileIndex tile, const std::shared_ptr<Comparison>& comparison,
                     const absl::Status& status);
  absl::StatusOr<tiers::EventHandle> MarkArrival();

  const Parts parts_;
  Listener& listener_;
  std::array<tiers::StreamHandle, 2> streams_;  // in, out

  mutable base::Mutex mu_;
  std::array<base::BusyMeter, 2> meters_ ABSL_GUARDED_BY(mu_);  // in, out
  // Why the last copy of a tile to the device failed.
  absl::flat_hash_map<TileIndex, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
  // By tile: the comparison of its last copy, until the grants that wait for it are answered.
  absl::flat_hash_map<TileIndex, std::shared_ptr<Comparison>> comparing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TILE_COPIES_H_
