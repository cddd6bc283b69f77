// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_progress.h"

#include <algorithm>

namespace spillway::engine {

using plan::TileIndex;
using plan::TraceEvent;

PlanProgress::PlanProgress(const StepPlan& step) : step_(step), index_(IndexOf(step)) {
  tiles_.resize(step.trace.tiles.size());
  due_at_start_.resize(tiles_.size());
  for (TileIndex tile = 0; tile < tiles_.size(); ++tile) {
    due_at_start_[tile] = index_.NumOps(tile) > 0 && MayStart(NextOp(tile));
  }
  Restart();
}

void PlanProgress::BeginTile(TileIndex tile) const {
  Tile& progress = tiles_[tile];
  progress = {.due = due_at_start_[tile], .run = run_};
  for (const plan::Place& place :
       std::ranges::equal_range(step_.plan.seam, tile, {}, &plan::Place::tile))
    progress.planned_at[At(place.tier)] = place.offset;
}

// --- Uses ---

std::optional<PlanProgress::Count> PlanProgress::Ask(const TraceEvent& event,
                                                     uint64_t step_number) {
  Tile& tile = Of(event.tile);
  if (!tile.strayed && index_.NumUses(event.tile) > 0 &&
      index_.PeriodOf(event.tile, tile.uses_asked) == step_number) {
    const uint64_t use = index_.InPeriod(event.tile, tile.uses_asked);
    const TraceEvent& planned = step_.trace.events[index_.use_event[use]];
    if (planned.kind == event.kind && planned.tier == event.tier &&
        planned.access == event.access) {
      tile.knows_next = false;
      return tile.uses_asked++;
    }
  }
  tile.strayed = true;
  return std::nullopt;
}

bool PlanProgress::HasBeenAsked(Count event) const {
  const uint64_t num_events = step_.trace.events.size();
  const uint64_t index = event % num_events, period = event / num_events;
  const TraceEvent& planned = step_.trace.events[index];
  const Tile& tile = Of(planned.tile);
  const uint64_t number = index_.event_number[index];
  return IsUse(planned) ? tile.uses_asked > period * index_.NumUses(planned.tile) + number
                        : tile.releases_asked > period * index_.releases[planned.tile] + number;
}

// Computes the tile's next use and which of its copies the plan drops before it.
void PlanProgress::FindNext(TileIndex tile, Tile* progress) const {
  const uint64_t ops = index_.NumOps(tile), uses = index_.NumUses(tile);
  progress->next_use = uses == 0 ? kNoUse : index_.EventOf(tile, progress->uses_asked);
  progress->is_dropped_next = {};
  const uint64_t end =
      uses == 0 ? progress->ops_ended + ops : index_.OpsBefore(tile, progress->uses_asked);
  for (uint64_t number = progress->ops_ended; number < end; ++number) {
    const plan::Op& op = step_.plan.ops[index_.ops[index_.first_op[tile] + number % ops]];
    if (op.kind == plan::Transfer::kDrop) progress->is_dropped_next[At(op.tier)] = true;
  }
  progress->knows_next = true;
}

// --- Operations ---

bool PlanProgress::IsLastBefore(Count op, TileIndex tile, Count use) const {
  return step_.OpAt(op).tile == tile && NextOp(tile) == op &&
         Of(tile).ops_ended + 1 == index_.OpsBefore(tile, use);
}

bool PlanProgress::IsDroppedAfter(Count op, Tier tier) const {
  const TileIndex tile = step_.OpAt(op).tile;
  const uint64_t next = Of(tile).ops_ended + 1;
  const plan::Op& after =
      step_.plan.ops[index_.ops[index_.first_op[tile] + next % index_.NumOps(tile)]];
  return after.kind == plan::Transfer::kDrop && after.tier == tier;
}

PlanProgress::Count PlanProgress::NextOp(TileIndex tile) const {
  const uint64_t ended = Of(tile).ops_ended, ops = index_.NumOps(tile);
  return ended / ops * step_.plan.ops.size() + index_.ops[index_.first_op[tile] + ended % ops];
}

bool PlanProgress::MakeDue(TileIndex tile) {
  if (tile >= tiles_.size() || Of(tile).due || index_.NumOps(tile) == 0 || !MayStart(NextOp(tile)))
    return false;
  Of(tile).due = true;
  return true;
}

// REQUIRES: the operations of its tile before it have ended.
bool PlanProgress::MayStart(Count count) const {
  const auto index = static_cast<uint32_t>(count % step_.plan.ops.size());
  const uint64_t period = step_.PeriodOf(count);
  const plan::Op& op = step_.plan.ops[index];
  const bool before = (op.after & plan::kPeriodBefore) != 0;
  if (op.after != plan::kNever && !(before && period == 0)) {
    const Tile& tile = Of(op.tile);
    const uint64_t periods = period - (before ? 1 : 0);
    if (tile.uses_happened < periods * index_.NumUses(op.tile) + index_.need_uses[index] ||
        tile.releases_happened < periods * index_.releases[op.tile] + index_.need_releases[index]) {
      return false;
    }
  }
  const auto waits = step_.plan.WaitsOf(index);
  return std::all_of(waits.begin(), waits.end(),
                     [&](uint32_t wait) { return HasEnded(wait, period); });
}

// Whether an operation has ended in `period`, or in the period before if `op` has kPeriodBefore
// set.
bool PlanProgress::HasEnded(uint32_t op, uint64_t period) const {
  const bool before = (op & plan::kPeriodBefore) != 0;
  if (before && period == 0) return true;
  op &= ~plan::kPeriodBefore;
  const TileIndex tile = step_.plan.ops[op].tile;
  return Of(tile).ops_ended >
         (period - (before ? 1 : 0)) * index_.NumOps(tile) + index_.op_number[op];
}

void PlanProgress::End(Count count) {
  const plan::Op& op = step_.OpAt(count);
  Tile& tile = Of(op.tile);
  tile.running = tile.due = false;
  ++tile.ops_ended;
  tile.knows_next = false;
  if (op.kind != plan::Transfer::kWrite)
    tile.planned_at[At(op.tier)] = op.kind == plan::Transfer::kDrop ? kNowhere : op.offset;
}

}  // namespace spillway::engine
