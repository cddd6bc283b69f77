// SPDX-License-Identifier: Apache-2.0
//
// How far each tile has come in a plan that is followed: which of its uses have happened, and which
// of its operations are over. This decides which operation of the tile may start. Only the order of
// each tile's own uses counts.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/engine/following/plan_index.h"
#include "src/engine/following/step_plan.h"
#include "src/plan/retention.h"

namespace spillway::engine {

class PlanProgress {
 public:
  using TileIndex = plan::TileIndex;
  // The number of an operation, of an event, or of a use among its tile's uses. It counts from the
  // first one in the first period and does not start again in later periods.
  using Count = uint64_t;

  // Starts at the plan's begin. `step` must outlive it.
  explicit PlanProgress(const StepPlan& step);
  // Returns to the plan's begin. The cost does not grow with the plan.
  void Restart() { ++run_; }
  // The tiles of the step. A tile with another index was added since, and the plan does not contain
  // it: it has strayed.
  size_t num_tiles() const { return tiles_.size(); }
  // The uses and operations that the plan has of each tile, in each period.
  const PlanIndex& index() const { return index_; }

  // --- Uses ---
  // Records that a use is asked for. Returns its number among the tile's uses if it is the tile's
  // next use in the plan and belongs to that step. If not, the tile has strayed: none of its uses
  // counts until Restart.
  std::optional<Count> Ask(const plan::TraceEvent& event, uint64_t step_number);
  void Happened(TileIndex tile) { ++Of(tile).uses_happened; }
  void ReleaseAsked(TileIndex tile) { ++Of(tile).releases_asked; }
  void Released(TileIndex tile) { ++Of(tile).releases_happened; }
  bool has_strayed(TileIndex tile) const { return Of(tile).strayed; }
  bool HasBeenAskedFor(TileIndex tile) const { return Of(tile).uses_asked > 0; }
  // Whether a use was asked for that has not happened yet.
  bool IsWanted(TileIndex tile) const { return Of(tile).uses_asked > Of(tile).uses_happened; }
  // Whether an event, which is a use or a release, has been asked for.
  bool HasBeenAsked(Count event) const;
  // The event of the tile's next use that has not been asked for. None if the plan has no use of
  // it.
  std::optional<Count> NextUse(TileIndex tile) const {
    const Tile& progress = WithNext(tile);
    return progress.next_use == kNoUse ? std::nullopt : std::optional(progress.next_use);
  }
  // Prefetches the tile's progress into the CPU's cache, for a tile that is queried soon.
  void Prefetch(TileIndex tile) const {
    if (tile < tiles_.size()) __builtin_prefetch(&tiles_[tile]);
  }

  // --- Operations ---
  // Whether all of the tile's operations before this use are over.
  bool OpsBeforeAreOver(TileIndex tile, Count use) const {
    return Of(tile).ops_ended >= index_.OpsBefore(tile, use);
  }
  // Whether the operation is the last one that the use of the tile still waits for.
  bool IsLastBefore(Count op, TileIndex tile, Count use) const;
  // Whether the plan drops the tile's copy in the tier before the tile's next use.
  bool IsDroppedNext(TileIndex tile, Tier tier) const {
    return WithNext(tile).is_dropped_next[At(tier)];
  }
  // Whether the tile's operation after `op` drops its copy in the tier. REQUIRES: `op` is the
  // tile's next operation, or runs.
  bool IsDroppedAfter(Count op, Tier tier) const;
  // The offset at which the plan has the tile's copy after the operations that are over. None if
  // the plan has no copy in the tier.
  std::optional<uint64_t> PlannedAt(TileIndex tile, Tier tier) const {
    const uint64_t offset = Of(tile).planned_at[At(tier)];
    return offset == kNowhere ? std::nullopt : std::optional(offset);
  }
  // Whether the tile's next operation runs or may start now.
  bool HasOpDue(TileIndex tile) const { return Of(tile).due; }
  bool IsRunning(TileIndex tile) const { return Of(tile).running; }
  // The tile's first operation that is not over. REQUIRES: the plan has operations of the tile.
  Count NextOp(TileIndex tile) const;
  // Whether the operation may start now and does not run.
  bool MayStartNow(Count op) const {
    const TileIndex tile = step_.OpAt(op).tile;
    return Of(tile).due && !Of(tile).running && NextOp(tile) == op;
  }
  // Marks the tile's next operation as due if it may start. Returns whether it was not due before.
  bool MakeDue(TileIndex tile);
  void Begin(Count op) { Of(step_.OpAt(op).tile).running = true; }
  void End(Count op);

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  static constexpr Count kNoUse = ~Count{0};
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  // One cache line.
  struct alignas(64) Tile {
    std::array<uint64_t, 2> planned_at = {kNowhere, kNowhere};
    uint64_t ops_ended = 0;
    Count next_use = kNoUse;
    uint32_t uses_asked = 0, uses_happened = 0;
    uint32_t releases_asked = 0, releases_happened = 0;
    bool due = false;      // the next operation may start or runs
    bool running = false;  // the next operation runs
    bool strayed = false;
    // Cached values that follow from the fields above. They are read more often than those change.
    bool knows_next = false;  // whether `next_use` and `is_dropped_next` are up to date
    std::array<bool, 2> is_dropped_next = {};
    uint32_t run = 0;  // valid in this run; in any other, the tile is at the plan's begin
  };

  // Creates the tile's progress on first use in this run.
  Tile& Of(TileIndex tile) const {
    if (tile >= tiles_.size()) return other_;
    Tile& progress = tiles_[tile];
    if (progress.run != run_) BeginTile(tile);
    return progress;
  }
  void BeginTile(TileIndex tile) const;
  const Tile& WithNext(TileIndex tile) const {
    Tile& progress = Of(tile);
    if (!progress.knows_next) FindNext(tile, &progress);
    return progress;
  }
  void FindNext(TileIndex tile, Tile* progress) const;
  bool MayStart(Count op) const;
  bool HasEnded(uint32_t op, uint64_t period) const;

  const StepPlan& step_;
  PlanIndex index_;
  std::vector<bool> due_at_start_;  // by tile: whether its first operation may start at once
  uint32_t run_ = 1;                // the number of the present run; Restart begins another
  mutable std::vector<Tile> tiles_;
  mutable Tile other_ = {.strayed = true, .knows_next = true};  // of each tile beyond these
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_
