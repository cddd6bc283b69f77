// SPDX-License-Identifier: Apache-2.0
//
// How far each tile has come in a plan that is followed: which of its uses have come, and which of
// its operations are over. From this follows which operation of it may start. Only the order of
// each tile's own uses counts.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/engine/following/plan_index.h"
#include "src/engine/following/step_plan.h"
#include "src/plan/keeping.h"

namespace spillway::engine {

class PlanProgress {
 public:
  using TileIndex = plan::TileIndex;
  // An operation, an event, or a use of a tile: counted on from the first period's first.
  using Count = uint64_t;

  // At the plan's begin; `step` must outlive it. Of no use once `stop` is true.
  PlanProgress(const StepPlan& step, bool takes_any_frame, const std::atomic<bool>* stop);
  // Back to the plan's begin; what this costs does not grow with the plan.
  void Restart() { ++run_; }
  // A tile that the plan knows nothing of, of the next index.
  void AddTile();
  size_t num_tiles() const { return tiles_.size(); }
  // What the plan has of each tile, in each period.
  const PlanIndex& index() const { return index_; }

  // --- Uses ---
  // The number of the use among the tile's, if it is the one that the plan has next in that step.
  // If not, the tile has strayed: no use of it counts until the plan is followed anew.
  std::optional<Count> Ask(const plan::TraceEvent& event, uint64_t step_number);
  void Happened(TileIndex tile) { ++Of(tile).uses_happened; }
  void ReleaseAsked(TileIndex tile) { ++Of(tile).releases_asked; }
  void Released(TileIndex tile) { ++Of(tile).releases_happened; }
  bool has_strayed(TileIndex tile) const { return Of(tile).strayed; }
  bool HasBeenAskedFor(TileIndex tile) const { return Of(tile).uses_asked > 0; }
  // A use was asked for that has not happened.
  bool IsWanted(TileIndex tile) const { return Of(tile).uses_asked > Of(tile).uses_happened; }
  // Whether a use has been asked for, or a release.
  bool HasBeenAsked(Count event) const;
  // The event of the next use that nobody has asked for; none: the plan has no use of it.
  std::optional<Count> NextUse(TileIndex tile) const {
    const Tile& progress = WithNext(tile);
    return progress.next_use == kNoUse ? std::nullopt : std::optional(progress.next_use);
  }
  // Asks memory for what these need of a tile that is asked about soon.
  void Prefetch(TileIndex tile) const { __builtin_prefetch(&tiles_[tile]); }
  // Whether the tile is next read in the tier and the plan does nothing with it before.
  bool IsReadNext(TileIndex tile, Tier tier) const;

  // --- Operations ---
  // Whether all that the plan does with the tile before this use is over.
  bool OpsBeforeAreOver(TileIndex tile, Count use) const {
    return Of(tile).ops_ended >= index_.OpsBefore(tile, use);
  }
  // Whether the operation is the last that the use waits for.
  bool IsLastBefore(Count op, TileIndex tile, Count use) const;
  // Whether the plan drops the tile's copy in the tier before the tile's next use.
  bool IsDroppedNext(TileIndex tile, Tier tier) const {
    return WithNext(tile).is_dropped_next[At(tier)];
  }
  // Whether it does so right after the operation, which is the tile's next or runs.
  bool IsDroppedAfter(Count op, Tier tier) const;
  // Where the tile's copy lies by now, as the plan has it; none: the plan has no copy there.
  std::optional<uint64_t> PlannedAt(TileIndex tile, Tier tier) const {
    const uint64_t offset = Of(tile).planned_at[At(tier)];
    return offset == kNowhere ? std::nullopt : std::optional(offset);
  }
  // Whether the tile's next operation runs, or may start now.
  bool HasOpDue(TileIndex tile) const { return Of(tile).due; }
  bool IsRunning(TileIndex tile) const { return Of(tile).running; }
  // REQUIRES: the plan has some of the tile.
  Count NextOp(TileIndex tile) const;
  // Whether it may start and does not run.
  bool MayStartNow(Count op) const {
    const TileIndex tile = OpAt(op).tile;
    return Of(tile).due && !Of(tile).running && NextOp(tile) == op;
  }
  // Whether the tile's next operation may start now and could not before.
  bool MakeDue(TileIndex tile);
  void Begin(Count op) { Of(OpAt(op).tile).running = true; }
  void End(Count op);

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  static constexpr Count kNoUse = ~Count{0};
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  // One line of the cache.
  struct alignas(64) Tile {
    std::array<uint64_t, 2> planned_at = {kNowhere, kNowhere};
    uint64_t ops_ended = 0;
    Count next_use = kNoUse;
    uint32_t uses_asked = 0, uses_happened = 0;
    uint32_t releases_asked = 0, releases_happened = 0;
    bool due = false;      // the next operation may start, or runs
    bool running = false;  // it runs
    bool strayed = false;
    // What follows from the above and is asked more often than that changes.
    bool knows_next = false;  // whether these are true
    std::array<bool, 2> is_dropped_next = {};
    uint32_t run = 0;  // of which this is true; in another one the tile is where the plan begins
  };

  // Of a tile that this run has not looked at, it is made now.
  Tile& Of(TileIndex tile) const {
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
  const plan::Op& OpAt(Count op) const { return step_.plan.ops[op % step_.plan.ops.size()]; }
  bool MayStart(Count op) const;
  bool HasEnded(uint32_t op, uint64_t period) const;

  const StepPlan& step_;
  const bool takes_any_frame_;
  PlanIndex index_;
  std::vector<plan::Place> seam_;   // by tile: what the plan begins with
  std::vector<bool> due_at_start_;  // by tile: its first operation may start at once
  uint32_t run_ = 1;                // since when the plan is followed
  mutable std::vector<Tile> tiles_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_PROGRESS_H_
