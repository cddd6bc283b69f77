// SPDX-License-Identifier: Apache-2.0
//
// An index of a step and its plan: each tile's uses and operations, in order, and which operations
// wait for which. It is computed from the step and the plan alone.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_INDEX_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/engine/following/step_plan.h"

namespace spillway::engine {

// Ranges by tile have one more entry, which holds the end of the last range.
struct PlanIndex {
  std::vector<uint32_t> first_op, ops;         // by tile: its operations, in order
  std::vector<uint32_t> first_use, use_event;  // by tile: its uses, in order
  std::vector<uint32_t> use_ops;    // by use: how many of its tile's operations come before it
  std::vector<uint32_t> releases;   // by tile: number of releases in a period
  std::vector<uint32_t> op_number;  // by operation: its number among its tile's operations
  // By operation: how many uses and releases of its tile it waits for, in the period of `after`.
  std::vector<uint32_t> need_uses, need_releases;
  std::vector<uint32_t> first_waiting, waiting;  // by operation: which ones wait for its end
  std::vector<uint32_t> event_number;  // by event: its number among its tile's uses or releases
  uint64_t num_moves = 0;              // operations that a link carries

  uint64_t NumOps(plan::TileIndex tile) const { return first_op[tile + 1] - first_op[tile]; }
  uint64_t NumUses(plan::TileIndex tile) const { return first_use[tile + 1] - first_use[tile]; }
  uint64_t num_uses() const { return use_event.size(); }
  // A use's period, its event, and how many operations of its tile come before it. Uses, events and
  // operations are counted from the first one in the first period. REQUIRES: the tile has uses.
  uint64_t PeriodOf(plan::TileIndex tile, uint64_t use) const { return use / NumUses(tile); }
  uint64_t EventOf(plan::TileIndex tile, uint64_t use) const {
    return PeriodOf(tile, use) * event_number.size() + use_event[InPeriod(tile, use)];
  }
  uint64_t OpsBefore(plan::TileIndex tile, uint64_t use) const {
    return PeriodOf(tile, use) * NumOps(tile) + use_ops[InPeriod(tile, use)];
  }
  // The use's index in `use_event` and `use_ops`.
  uint64_t InPeriod(plan::TileIndex tile, uint64_t use) const {
    return first_use[tile] + use % NumUses(tile);
  }
  // The operations that wait for this one's end.
  std::span<const uint32_t> WaitingFor(uint64_t op) const {
    return std::span(waiting).subspan(first_waiting[op], first_waiting[op + 1] - first_waiting[op]);
  }
};

// Builds the index.
PlanIndex IndexOf(const StepPlan& step);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_INDEX_H_
