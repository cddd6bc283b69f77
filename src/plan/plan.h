// SPDX-License-Identifier: Apache-2.0
//
// The transfer plan of a step that repeats: every operation that moves or frees a tile, in an order
// that cannot block, with the place of each copy in its arena. The plan fixes what a step moves.
// The start of an operation follows from what it waits for, so transfers may run ahead as far as
// frames are free, and no further.
//
// A plan describes one period: the copies that are in memory at its end are those at its start.

#ifndef SPILLWAY_PLAN_PLAN_H_
#define SPILLWAY_PLAN_PLAN_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/plan/stop.h"
#include "src/plan/trace.h"
#include "src/plan/transfer.h"
#include "src/plan/ways_to_retain.h"

namespace spillway::plan {

struct Op {
  uint64_t offset = 0;  // of the frame, in the arena of `tier`
  TileIndex tile = 0;
  uint32_t after = 0;       // event of its tile that it waits for; kNever: none
  uint32_t first_wait = 0;  // index into Plan::waits
  uint32_t position = 0;    // BeforeEvent, AtEvent or AfterEvent of an event
  Transfer kind = Transfer::kRead;
  Tier tier = Tier::kPinned;  // of the frame that is taken, written from or dropped
};

// A bit in the index of an event or of an operation: it is one of the period before.
inline constexpr uint32_t kPeriodBefore = uint32_t{1} << 31;
inline constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// A copy of a tile in memory.
struct Place {
  TileIndex tile = 0;
  Tier tier = Tier::kPinned;
  uint64_t offset = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct PlanOptions {
  uint64_t device_bytes = 0;
  uint64_t pinned_bytes = 0;
  bool has_store = true;
  // Chooses what each tier retains. Tests compare others with it.
  ChooseRetained* choose_retained = &WaysToRetain;
  uint64_t frame_alignment = 4096;
  // Whether some room is not filled with retained tiles, so that transfers can run ahead of leases.
  // MODEL.md says how much.
  bool has_lookahead = true;
  // Bytes at the end of each arena, which the plan leaves for leases that do not wait for their
  // turn (reserve.h).
  uint64_t device_reserve_bytes = 0;
  uint64_t pinned_reserve_bytes = 0;
  // Once it is set, planning ends soon and returns Cancelled.
  Stop stop = {};
};

// An operation may start when
//   - the operations before it in `ops` that are of the same tile have ended,
//   - its event `after` has happened, and
//   - the operations that it waits for, which drop what lay in its frame, have ended.
// Each of these comes before it in the one order of `ops` and the trace's events, so taking the
// operations of each link in order never deadlocks. An acquire waits for the operations of its tile
// that come before it.
struct Plan {
  PlanOptions options;
  std::vector<Op> ops;
  std::vector<uint32_t> waits;  // operations; those of an op begin at its `first_wait`
  std::vector<Place> seam;      // copies in memory between two periods, by tile
  LinkBytes bytes;              // moved in a period

  std::span<const uint32_t> WaitsOf(size_t op) const {
    const size_t end = op + 1 < ops.size() ? ops[op + 1].first_wait : waits.size();
    return {waits.data() + ops[op].first_wait, end - ops[op].first_wait};
  }
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PLAN_H_
