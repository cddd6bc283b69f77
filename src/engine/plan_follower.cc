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

bool IsUse(const TraceEvent& event) { return event.kind != TraceEvent::Kind::kRelease; }
bool IsStopped(const std::atomic<bool>* stop) { return stop != nullptr && *stop; }

}  // namespace

PlanFollower::Index PlanFollower::MakeIndex(const StepPlan& step, const std::atomic<bool>* stop) {
  const std::vector<plan::Op>& ops = step.plan.ops;
  const std::vector<TraceEvent>& events = step.trace.events;
  const size_t num_tiles = step.trace.tiles.size();
  Index index;
  index.first_op.resize(num_tiles + 1);
  index.first_use.resize(num_tiles + 1);
  index.releases.resize(num_tiles);
  index.op_number.resize(ops.size());
  index.event_number.resize(events.size());
  for (const plan::Op& op : ops) {
    ++index.first_op[op.tile + 1];
    index.num_moves += plan::HasLink(op.kind) ? 1 : 0;
  }
  for (const TraceEvent& event : events) index.first_use[event.tile + 1] += IsUse(event) ? 1 : 0;
  if (IsStopped(stop)) return index;
  std::partial_sum(index.first_op.begin(), index.first_op.end(), index.first_op.begin());
  std::partial_sum(index.first_use.begin(), index.first_use.end(), index.first_use.begin());
  index.ops.resize(ops.size());
  index.use_event.resize(index.first_use.back());
  index.use_ops.resize(index.first_use.back());

  // Events and operations in the plan's order.
  std::vector<uint32_t> uses_so_far(num_tiles), ops_so_far(num_tiles);
  uint32_t op = 0;
  const auto pass_ops = [&](uint64_t until) {
    for (; op < ops.size() && step.plan.position[op] < until; ++op) {
      const TileIndex tile = ops[op].tile;
      index.op_number[op] = ops_so_far[tile]++;
      index.ops[index.first_op[tile] + index.op_number[op]] = op;
    }
  };
  std::vector<uint32_t> uses_until(events.size()), releases_until(events.size());
  for (uint32_t event = 0; event < events.size(); ++event) {
    if (IsStopped(stop)) return index;
    pass_ops(plan::AtEvent(event));
    const TileIndex tile = events[event].tile;
    if (IsUse(events[event])) {
      const uint32_t use = index.first_use[tile] + uses_so_far[tile];
      index.use_event[use] = event;
      index.use_ops[use] = ops_so_far[tile];
      index.event_number[event] = uses_so_far[tile]++;
    } else {
      index.event_number[event] = index.releases[tile]++;
    }
    uses_until[event] = uses_so_far[tile];
    releases_until[event] = index.releases[tile];
  }
  pass_ops(std::numeric_limits<uint64_t>::max());

  index.need_uses.resize(ops.size());
  index.need_releases.resize(ops.size());
  index.first_waiting.resize(ops.size() + 2);
  for (op = 0; op < ops.size(); ++op) {
    if (IsStopped(stop)) return index;
    if (ops[op].after != plan::kNever) {
      index.need_uses[op] = uses_until[ops[op].after & ~plan::kPeriodBefore];
      index.need_releases[op] = releases_until[ops[op].after & ~plan::kPeriodBefore];
    }
    for (const uint32_t wait : step.plan.WaitsOf(op))
      ++index.first_waiting[(wait & ~plan::kPeriodBefore) + 2];
  }
  std::partial_sum(index.first_waiting.begin(), index.first_waiting.end(),
                   index.first_waiting.begin());
  index.waiting.resize(index.first_waiting.back());
  for (op = 0; op < ops.size() && !IsStopped(stop); ++op) {
    for (const uint32_t wait : step.plan.WaitsOf(op))
      index.waiting[index.first_waiting[(wait & ~plan::kPeriodBefore) + 1]++] = op;
  }
  return index;
}

PlanFollower::PlanFollower(StepPlan step, const std::atomic<bool>* stop)
    : step_(std::move(step)),
      num_events_(step_.plan.num_events),
      num_ops_(step_.plan.ops.size()),
      num_positions_(num_events_ * plan::kPositionsPerEvent),
      takes_any_frame_(step_.plan.options.device_reserve_bytes > 0 ||
                       step_.plan.options.pinned_reserve_bytes > 0),
      index_(MakeIndex(step_, stop)),
      tiles_(step_.trace.tiles.size()) {
  if (IsStopped(stop)) return;
  if (takes_any_frame_) FindRoom();
  FindStart(stop);
}

// What may start at once, in order.
void PlanFollower::FindStart(const std::atomic<bool>* stop) {
  index_.seam = step_.plan.seam;
  std::sort(index_.seam.begin(), index_.seam.end(),
            [](const plan::Place& a, const plan::Place& b) { return a.tile < b.tile; });
  index_.due_at_start.resize(tiles_.size());
  std::array<std::vector<uint32_t>, kNoLink + 1> start;
  for (TileIndex tile = 0; tile < tiles_.size(); ++tile) {
    if (IsStopped(stop)) return;
    if (NumOps(tile) == 0 || !MayStart(NextOp(tile))) continue;
    index_.due_at_start[tile] = true;
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
  for (; !ahead_.empty(); ahead_.pop()) EndAhead(ahead_.top());
  begins_.clear();
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
  progress.due = index_.due_at_start[tile];
  const auto before = [](const plan::Place& place, TileIndex at) { return place.tile < at; };
  auto place = std::lower_bound(index_.seam.begin(), index_.seam.end(), tile, before);
  for (; place != index_.seam.end() && place->tile == tile; ++place)
    progress.planned_at[At(place->tier)] = place->offset;
}

void PlanFollower::AddTile() {
  tiles_.emplace_back();
  index_.first_op.push_back(index_.first_op.back());
  index_.first_use.push_back(index_.first_use.back());
  index_.releases.push_back(0);
}

// --- What callers do ---

std::optional<PlanFollower::Count> PlanFollower::Ask(const TraceEvent& event) {
  if (event.tile < tiles_.size() && !Of(event.tile).strayed) {
    TileProgress& tile = Of(event.tile);
    const uint64_t uses = NumUses(event.tile);
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
  const uint64_t uses = NumUses(tile);
  return use / uses * NumOps(tile) + index_.use_ops[index_.first_use[tile] + use % uses];
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
  return IsUse(planned) ? tile.uses_asked > period * NumUses(planned.tile) + number
                        : tile.releases_asked > period * index_.releases[planned.tile] + number;
}

bool PlanFollower::MayWait(TileIndex tile, Count use) {
  LookAhead();
  if (Of(tile).running || (Of(tile).due && IsTakenSoon(NextOp(tile)))) return true;
  const uint64_t uses = NumUses(tile);
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
  const uint64_t uses = NumUses(tile);
  if (progress.strayed || uses == 0) return false;
  const uint32_t use = index_.first_use[tile] + static_cast<uint32_t>(progress.uses_asked % uses);
  const TraceEvent& next = step_.trace.events[index_.use_event[use]];
  return next.kind == TraceEvent::Kind::kAcquire && next.access == Access::kRead &&
         next.tier == tier && OpsBeforeAreOver(tile, progress.uses_asked);
}

bool PlanFollower::IsDroppedNext(TileIndex tile, Tier tier) const {
  const TileProgress& progress = Of(tile);
  const uint64_t ops = NumOps(tile), uses = NumUses(tile);
  const uint64_t end = uses == 0 ? progress.ops_ended + ops : OpsBefore(tile, progress.uses_asked);
  for (uint64_t number = progress.ops_ended; number < end; ++number) {
    const plan::Op& op = step_.plan.ops[index_.ops[index_.first_op[tile] + number % ops]];
    if (op.kind == plan::Transfer::kDrop && op.tier == tier) return true;
  }
  return false;
}

uint64_t PlanFollower::EventsUntilNextUse(TileIndex tile) const {
  const uint64_t uses = NumUses(tile), asked = Of(tile).uses_asked;
  if (uses == 0) return std::numeric_limits<uint64_t>::max();
  const Count event =
      asked / uses * num_events_ + index_.use_event[index_.first_use[tile] + asked % uses];
  return event - std::min(event, all_asked_before_);
}

// --- Operations ---

PlanFollower::Count PlanFollower::NextOp(TileIndex tile) const {
  const uint64_t ended = Of(tile).ops_ended, ops = NumOps(tile);
  return ended / ops * num_ops_ + index_.ops[index_.first_op[tile] + ended % ops];
}

// Whether an operation has ended in a period, seen from a reference that may be to the one before.
bool PlanFollower::HasEnded(uint32_t op, uint64_t period) const {
  const bool before = (op & plan::kPeriodBefore) != 0;
  if (before && period == 0) return true;
  op &= ~plan::kPeriodBefore;
  const TileIndex tile = step_.plan.ops[op].tile;
  return Of(tile).ops_ended > (period - (before ? 1 : 0)) * NumOps(tile) + index_.op_number[op];
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
    if (tile.uses_happened < periods * NumUses(op.tile) + index_.need_uses[index] ||
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
  if (Of(tile).due || NumOps(tile) == 0) return;
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
  const plan::Op& after = step_.plan.ops[index_.ops[index_.first_op[tile] + next % NumOps(tile)]];
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

uint64_t PlanFollower::FrameBytes(TileIndex tile) const {
  return base::RoundUp(step_.trace.tiles[tile].size_bytes, step_.plan.options.frame_alignment);
}

// What the plan has at each position. What is at home takes none of the room that is shared.
void PlanFollower::FindRoom() {
  const plan::Plan& plan = step_.plan;
  const auto bytes_of = [&](TileIndex tile, Tier tier) {
    return step_.trace.tiles[tile].has_home(tier) ? 0 : FrameBytes(tile);
  };
  std::array<uint64_t, 2> now = {};
  for (const plan::Place& place : plan.seam)
    now[At(place.tier)] += bytes_of(place.tile, place.tier);
  std::array<std::vector<uint64_t>, 2> bytes;
  bytes.fill(std::vector<uint64_t>(num_positions_));
  uint32_t op = 0;
  for (uint32_t position = 0; position < num_positions_; ++position) {
    std::array<uint64_t, 2> most = now;
    for (; op < num_ops_ && plan.position[op] == position; ++op) {
      const plan::Op& at = plan.ops[op];
      const size_t tier = At(at.tier);
      if (at.kind == plan::Transfer::kDrop) {
        now[tier] -= bytes_of(at.tile, at.tier);
      } else if (at.kind != plan::Transfer::kWrite) {
        now[tier] += bytes_of(at.tile, at.tier);
      }
      most[tier] = std::max(most[tier], now[tier]);
    }
    for (const size_t tier : {0, 1}) bytes[tier][position] = most[tier];
  }
  std::array<uint64_t, 2> homes = {};
  for (TileIndex tile = 0; tile < step_.trace.tiles.size(); ++tile) {
    const auto& home = step_.trace.tiles[tile].home;
    if (home) homes[At(home->tier)] += FrameBytes(tile);
  }
  const plan::PlanOptions& options = plan.options;
  const auto room = [](uint64_t budget, uint64_t taken) {
    return budget - std::min(budget, taken);
  };
  room_.emplace_back(bytes[0], room(options.device_bytes, options.device_reserve_bytes + homes[0]));
  room_.emplace_back(bytes[1], room(options.pinned_bytes, options.pinned_reserve_bytes + homes[1]));
}

// Goes past what has been asked for; what was taken ahead until there is where the plan has it.
void PlanFollower::LookAhead() {
  while (HasBeenAsked(all_asked_before_)) ++all_asked_before_;
  for (; !ahead_.empty() && ahead_.top().end <= PositionNow(); ahead_.pop()) {
    EndAhead(ahead_.top());
    begins_.erase(begins_.find(ahead_.top().begin));
  }
}

void PlanFollower::EndAhead(const Ahead& ahead) {
  const auto begin = static_cast<uint32_t>(ahead.begin % num_positions_);
  const auto end = static_cast<uint32_t>(ahead.end % num_positions_);
  plan::RoomTree& room = room_[At(ahead.tier)];
  ahead.taken ? room.Remove(begin, end, ahead.bytes) : room.Put(begin, end, ahead.bytes);
}

bool PlanFollower::HasRoom(Count count) const {
  const plan::Op& op = OpAt(count);
  const bool takes = op.kind != plan::Transfer::kWrite && op.kind != plan::Transfer::kDrop;
  if (!takes_any_frame_ || !takes || step_.trace.tiles[op.tile].has_home(op.tier)) return true;
  const Count now = PositionNow(), position = PositionOf(count);
  if (position <= now) return true;
  // What was taken or given back ahead is written down from there on, a period before its next.
  const Count oldest = begins_.empty() ? now : *begins_.begin();
  if (position - oldest >= num_positions_) return false;
  return room_[At(op.tier)].Fits(static_cast<uint32_t>(now % num_positions_),
                                 static_cast<uint32_t>(position % num_positions_),
                                 FrameBytes(op.tile));
}

void PlanFollower::TakeOrGiveRoom(Count count) {
  const plan::Op& op = OpAt(count);
  const Count now = PositionNow(), position = PositionOf(count);
  if (op.kind == plan::Transfer::kWrite || position <= now || position - now >= num_positions_)
    return;
  if (step_.trace.tiles[op.tile].has_home(op.tier)) return;
  Ahead ahead;
  ahead.end = position;
  ahead.begin = now;
  ahead.tier = op.tier;
  ahead.taken = op.kind != plan::Transfer::kDrop;
  ahead.bytes = FrameBytes(op.tile);
  const auto begin = static_cast<uint32_t>(now % num_positions_);
  const auto end = static_cast<uint32_t>(position % num_positions_);
  plan::RoomTree& room = room_[At(op.tier)];
  ahead.taken ? room.Put(begin, end, ahead.bytes) : room.Remove(begin, end, ahead.bytes);
  ahead_.push(ahead);
  begins_.insert(now);
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
  if (takes_any_frame_) TakeOrGiveRoom(op);
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
