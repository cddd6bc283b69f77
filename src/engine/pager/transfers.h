// SPDX-License-Identifier: Apache-2.0
//
// Transfers in flight, of which a tile has at most one: how each begins, how it ends, and what has
// changed then. Which one begins is decided elsewhere.

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

  // One begins; `job` is told how it ended.
  void Start(TileIndex tile, Transfer transfer, MoveReason reason, Job* job);
  struct Ended {
    Transfer transfer = Transfer::kRead;
    Job* job = nullptr;
    std::optional<PlannedOp> planned;
    bool is_leased = false;   // a stream waited for it
    bool is_written = false;  // and has written what it brought
  };
  // It is over, one way or the other.
  Ended End(TileIndex tile);
  // It ended well: the bytes are where it brought them.
  void Arrive(TileIndex tile, const Ended& ended);
  int in_flight() const { return in_flight_; }

  // A small tile's write has begun in this pump: others may go along.
  bool small_leaves() const { return small_leaves_; }
  void EndPump() { small_leaves_ = false; }

 private:
  PageTable& pages_;
  int in_flight_ = 0;
  bool small_leaves_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_TRANSFERS_H_
