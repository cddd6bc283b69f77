// SPDX-License-Identifier: Apache-2.0

#include "src/engine/plan_follower.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/plan/keeping.h"

namespace spillway::engine {
namespace {

using plan::TraceEvent;

bool IsStopped(const std::atomic<bool>* stop) { return stop != nullptr && *stop; }

}  // namespace

PlanFollower::PlanFollower(StepPlan step, const std::atomic<bool>* stop)
    : step_(std::move(step)),
      num_events_(step_.plan.num_events),
      num_ops_(step_.plan.ops.size()),
      num_positions_(num_events_ * plan::kPositionsPerEvent),
      takes_any_frame_(step_.plan.options.device_reserve_bytes > 0 ||
                       step_.plan.options.pinned_reserve_bytes > 0),
      index_(IndexOf(step_, stop)),
      tiles_(step_.trace.tiles.size()) {
  if (IsStopped(stop)) return;
  if (takes_any_frame_) room_.emplace(step_);
  FindStart(stop);
}

// What may start at once, in order.
void PlanFollower::FindStart(const std::atomic<bool>* stop) {
  seam_ = step_.plan.seam;
  std::sort(seam_.begin(), seam_.end(),
            [](const plan::Place& a, const plan::Place& b) { return a.tile < b.tile; });
  due_at_start_.resize(tiles_.size());
  std::array<std::vector<uint32_t>, kNoLink + 1> start;
  for (TileIndex tile = 0; tile < tiles_.size(); ++tile) {
    if (IsStopped(stop)) return;
    if (index_.NumOps(tile) == 0 || !MayStart(NextOp(tile))) continue;
    due_at_start_[tile] = true;
    const auto op = static_cast<uint32_t>(NextOp(tile));
    const size_t queue = QueueOf(OpAt(op));
    (queue <= kNoLink ? start[queue] : free_at_start_).push_back(op);
  }
  std::sort(free_at_start_.begin(), free_at_start_.end());
  for (size_t queue = 0; queue < start.size(); ++queue) {
    std::sort(start[queue].begin(), start[queue].end());
    ready_[queue].SetStart(std::move(start[queue]));
  }
  Restart();
}

void PlanFollower::Restart() {
  ++run_;
  step_number_ = asked_ = extra_ = all_asked_before_ = 0;
  for (Ready& ready : ready_) ready.Restart();
  next_free_ = 0;
  free_.clear();
  running_.clear();
  in_flight_ = {};
  if (room_) room_->Restart();
  periods_.clear();
  taken_periods_ = 0;
}

void PlanFollower::BeginTile(TileIndex tile) const {
  TileProgress& progress = tiles_[tile];
  progress = {.run = run_};
  if (tile >= step_.trace.tiles.size()) {
    progress.strayed = true;
    return;
  }
  progress.due = due_at_start_[tile];
  const auto before = [](const plan::Place& place, TileIndex at) { return place.tile < at; };
  auto place = std::lower_bound(seam_.begin(), seam_.end(), tile, before);
  for (; place != seam_.end() && place->tile == tile; ++place)
    progress.planned_at[At(place->tier)] = place->offset;
}

void PlanFollower::AddTile() {
  tiles_.emplace_back();
  index_.AddTile();
}

// --- What callers do ---

std::optional<PlanFollower::Count> PlanFollower::Ask(const TraceEvent& event) {
  if (event.tile < tiles_.size() && !Of(event.tile).strayed) {
    TileProgress& tile = Of(event.tile);
    const uint64_t uses = index_.NumUses(event.tile);
    if (uses > 0 && tile.uses_asked / uses == step_number_) {
      const uint32_t first = index_.first_use[event.tile];
      const TraceEvent& planned =
          step_.trace.events[index_.use_event[first + tile.uses_asked % uses]];
      if (planned.kind == event.kind && planned.tier == event.tier &&
          planned.access == event.access) {
        ++asked_;
        return tile.uses_asked++;
      }
    }
    tile.strayed = true;
  }
  ++extra_;
  return std::nullopt;
}

void PlanFollower::Happened(TileIndex tile) {
  ++Of(tile).uses_happened;
  Consider(tile);
}

void PlanFollower::Released(TileIndex tile) {
  ++Of(tile).releases_happened;
  Consider(tile);
}

bool PlanFollower::EndStep() {
  if (extra_ > 0 || asked_ != (step_number_ + 1) * index_.use_event.size()) return false;
  ++step_number_;
  return true;
}

// --- Leases ---

uint64_t PlanFollower::OpsBefore(TileIndex tile, Count use) const {
  const uint64_t uses = index_.NumUses(tile);
  return use / uses * index_.NumOps(tile) + index_.use_ops[index_.first_use[tile] + use % uses];
}

bool PlanFollower::IsLastBefore(Count op, TileIndex tile, Count use) const {
  return OpAt(op).tile == tile && NextOp(tile) == op &&
         Of(tile).ops_ended + 1 == OpsBefore(tile, use);
}

bool PlanFollower::HasBeenAsked(Count event) const {
  const uint64_t index = event % num_events_, period = event / num_events_;
  const TraceEvent& planned = step_.trace.events[index];
  const TileProgress& tile = Of(planned.tile);
  const uint64_t number = index_.event_number[index];
  return IsUse(planned) ? tile.uses_asked > period * index_.NumUses(planned.tile) + number
                        : tile.releases_asked > period * index_.releases[planned.tile] + number;
}

bool PlanFollower::MayWait(TileIndex tile, Count use) {
  LookAhead();
  if (Of(tile).running || (Of(tile).due && IsTakenSoon(NextOp(tile)))) return true;
  const uint64_t uses = index_.NumUses(tile);
  const Count event =
      use / uses * num_events_ + index_.use_event[index_.first_use[tile] + use % uses];
  return all_asked_before_ >= event;
}

void PlanFollower::Skip(TileIndex tile, Count use) {
  SPILLWAY_CHECK(!Of(tile).running);
  while (!OpsBeforeAreOver(tile, use)) {
    const Count op = NextOp(tile);
    Started(op);
    Over(op);
  }
}

bool PlanFollower::IsReadNext(TileIndex tile, Tier tier) const {
  const TileProgress& progress = Of(tile);
  const uint64_t uses = index_.NumUses(tile);
  if (progress.strayed || uses == 0) return false;
  const uint32_t use = index_.first_use[tile] + static_cast<uint32_t>(progress.uses_asked % uses);
  const TraceEvent& next = step_.trace.events[index_.use_event[use]];
  return next.kind == TraceEvent::Kind::kAcquire && next.access == Access::kRead &&
         next.tier == tier && OpsBeforeAreOver(tile, progress.uses_asked);
}

bool PlanFollower::IsDroppedNext(TileIndex tile, Tier tier) const {
  const TileProgress& progress = Of(tile);
  const uint64_t ops = index_.NumOps(tile), uses = index_.NumUses(tile);
  const uint64_t end = uses == 0 ? progress.ops_ended + ops : OpsBefore(tile, progress.uses_asked);
  for (uint64_t number = progress.ops_ended; number < end; ++number) {
    const plan::Op& op = step_.plan.ops[index_.ops[index_.first_op[tile] + number % ops]];
    if (op.kind == plan::Transfer::kDrop && op.tier == tier) return true;
  }
  return false;
}

uint64_t PlanFollower::EventsUntilNextUse(TileIndex tile) const {
  const uint64_t uses = index_.NumUses(tile), asked = Of(tile).uses_asked;
  if (uses == 0) return std::numeric_limits<uint64_t>::max();
  const Count event =
      asked / uses * num_events_ + index_.use_event[index_.first_use[tile] + asked % uses];
  return event - std::min(event, all_asked_before_);
}

// --- Operations ---

PlanFollower::Count PlanFollower::NextOp(TileIndex tile) const {
  const uint64_t ended = Of(tile).ops_ended, ops = index_.NumOps(tile);
  return ended / ops * num_ops_ + index_.ops[index_.first_op[tile] + ended % ops];
}

// Whether an operation has ended in a period, seen from a reference that may be to the one before.
bool PlanFollower::HasEnded(uint32_t op, uint64_t period) const {
  const bool before = (op & plan::kPeriodBefore) != 0;
  if (before && period == 0) return true;
  op &= ~plan::kPeriodBefore;
  const TileIndex tile = step_.plan.ops[op].tile;
  return Of(tile).ops_ended >
         (period - (before ? 1 : 0)) * index_.NumOps(tile) + index_.op_number[op];
}

// Those before it of its tile have ended.
bool PlanFollower::MayStart(Count count) const {
  const auto index = static_cast<uint32_t>(count % num_ops_);
  const uint64_t period = count / num_ops_;
  const plan::Op& op = step_.plan.ops[index];
  const bool before = (op.after & plan::kPeriodBefore) != 0;
  if (op.after != plan::kNever && !(before && period == 0)) {
    const TileProgress& tile = Of(op.tile);
    const uint64_t periods = period - (before ? 1 : 0);
    if (tile.uses_happened < periods * index_.NumUses(op.tile) + index_.need_uses[index] ||
        tile.releases_happened < periods * index_.releases[op.tile] + index_.need_releases[index]) {
      return false;
    }
  }
  if (takes_any_frame_) return true;
  const auto waits = step_.plan.WaitsOf(index);
  return std::all_of(waits.begin(), waits.end(),
                     [&](uint32_t wait) { return HasEnded(wait, period); });
}

void PlanFollower::Consider(TileIndex tile) {
  if (Of(tile).due || index_.NumOps(tile) == 0) return;
  const Count op = NextOp(tile);
  if (!MayStart(op)) return;
  Of(tile).due = true;
  PutBack(op);
}

// kNoLink + 1: none of those in order.
size_t PlanFollower::QueueOf(const plan::Op& op) const {
  if (plan::HasLink(op.kind)) return static_cast<size_t>(op.kind);
  return takes_any_frame_ && op.kind != plan::Transfer::kDrop ? kNoLink : kNoLink + 1;
}

void PlanFollower::PutBack(Count op) {
  const size_t queue = QueueOf(OpAt(op));
  if (queue <= kNoLink) {
    ready_[queue].push(op);
  } else {
    free_.push_back(op);
  }
}

// The operation of least position that may start.
std::optional<PlanFollower::Count> PlanFollower::First(size_t queue) {
  Ready& ready = ready_[queue];
  while (!ready.empty() && !IsCurrent(ready.top())) ready.pop();
  return ready.empty() ? std::nullopt : std::optional(ready.top());
}

// Where the first has no room, none of those behind it takes it.
std::optional<PlanFollower::Count> PlanFollower::Take(size_t queue) {
  const std::optional<Count> op = First(queue);
  if (!op) return std::nullopt;
  LookAhead();
  if (!HasRoom(*op)) return std::nullopt;
  ready_[queue].pop();
  return op;
}

// Whether nothing but transfers is before an operation that may start.
bool PlanFollower::IsTakenSoon(Count op) {
  const size_t queue = QueueOf(OpAt(op));
  if (queue > kNoLink) return true;
  const std::optional<Count> first = First(queue);
  return first && HasRoom(*first) && HasRoom(op);
}

std::optional<PlanFollower::Count> PlanFollower::TakeFree() {
  while (next_free_ < free_at_start_.size() || !free_.empty()) {
    const bool at_start = next_free_ < free_at_start_.size();
    const Count op = at_start ? free_at_start_[next_free_++] : free_.front();
    if (!at_start) free_.pop_front();
    if (IsCurrent(op)) return op;
  }
  return Take(kNoLink);
}

void PlanFollower::Begin(Count op) {
  Of(OpAt(op).tile).running = true;
  Started(op);
  if (!plan::HasLink(OpAt(op).kind)) return;
  running_.push_back(op);
  ++in_flight_[static_cast<size_t>(OpAt(op).kind)];
}

void PlanFollower::End(Count op) {
  if (!Of(OpAt(op).tile).running) {
    Started(op);
  } else if (plan::HasLink(OpAt(op).kind)) {
    std::erase(running_, op);
    --in_flight_[static_cast<size_t>(OpAt(op).kind)];
  }
  Over(op);
}

bool PlanFollower::IsRoomComing(Tier tier) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](Count op) { return IsLastOf(op, tier); });
}

bool PlanFollower::IsLastOf(Count op, Tier tier) const {
  const TileIndex tile = OpAt(op).tile;
  const uint64_t next = Of(tile).ops_ended + 1;
  const plan::Op& after =
      step_.plan.ops[index_.ops[index_.first_op[tile] + next % index_.NumOps(tile)]];
  return after.kind == plan::Transfer::kDrop && after.tier == tier;
}

void PlanFollower::Over(Count count) {
  const plan::Op& op = OpAt(count);
  TileProgress& tile = Of(op.tile);
  tile.running = tile.due = false;
  ++tile.ops_ended;
  if (op.kind != plan::Transfer::kWrite)
    tile.planned_at[At(op.tier)] = op.kind == plan::Transfer::kDrop ? kNowhere : op.offset;
  Consider(op.tile);
  const uint64_t index = count % num_ops_;
  for (uint32_t i = index_.first_waiting[index]; i < index_.first_waiting[index + 1]; ++i)
    Consider(step_.plan.ops[index_.waiting[i]].tile);
}

// --- Room ---

// Goes past what has been asked for.
void PlanFollower::LookAhead() {
  while (HasBeenAsked(all_asked_before_)) ++all_asked_before_;
  if (room_) room_->PassTo(PositionNow());
}

bool PlanFollower::HasRoom(Count op) const {
  return !room_ || room_->Has(OpAt(op), PositionOf(op), PositionNow());
}

// --- What was moved ---

PlanFollower::Period& PlanFollower::PeriodAt(uint64_t period) {
  // What is begun of a period that is taken already counts with the next.
  const uint64_t index = period - std::min(period, taken_periods_);
  if (index >= periods_.size()) periods_.resize(index + 1);
  return periods_[index];
}

// Once for each operation: it has begun, or counts as over without.
void PlanFollower::Started(Count op) {
  if (plan::HasLink(OpAt(op).kind)) ++PeriodAt(op / num_ops_).begun;
  if (room_) room_->Begun(OpAt(op), PositionOf(op), PositionNow());
}

std::optional<plan::LinkBytes> PlanFollower::TakeMoved() {
  if (index_.num_moves == 0) {
    if (taken_periods_ == step_number_) return std::nullopt;
    ++taken_periods_;
    return plan::LinkBytes{};
  }
  if (periods_.empty() || periods_.front().begun < index_.num_moves) return std::nullopt;
  const plan::LinkBytes moved = periods_.front().moved;
  periods_.pop_front();
  ++taken_periods_;
  return moved;
}

}  // namespace spillway::engine
