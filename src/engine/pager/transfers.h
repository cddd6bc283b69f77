// SPDX-License-Identifier: Apache-2.0
//
// Transfers in flight, at most one for each tile: starts and ends them, and applies their results
// to the page table. Other parts of the pager decide which transfer starts.

#ifndef SPILLWAY_ENGINE_PAGER_TRANSFERS_H_
#define SPILLWAY_ENGINE_PAGER_TRANSFERS_H_

#include <optional>

#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"

namespace spillway::engine {

// Externally synchronised.
class Transfers {
 public:
  explicit Transfers(PageTable* pages) : pages_(*pages) {}

  // Starts a transfer. `job`, which may be null, waits for its end and receives its failure.
  void Start(TileIndex tile, Transfer transfer, MoveReason reason, Job* job);
  struct EndedTransfer {
    Transfer transfer = Transfer::kRead;
    Job* job = nullptr;
    std::optional<PlannedOp> planned;
    bool is_leased = false;   // a lease was granted before its end
    bool is_written = false;  // a writer's lease ended before its end
  };
  // Ends the tile's transfer, whether it succeeded or failed.
  EndedTransfer End(TileIndex tile);
  // Applies the result of a transfer that succeeded: the bytes are at its destination.
  void Arrive(TileIndex tile, const EndedTransfer& ended);
  int in_flight() const { return in_flight_; }

  // Whether a small tile's write has started in this run of the pump, so that other small tiles may
  // be written with it.
  bool small_leaves() const { return small_leaves_; }
  void EndPump() { small_leaves_ = false; }

 private:
  PageTable& pages_;
  int in_flight_ = 0;
  bool small_leaves_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_TRANSFERS_H_
