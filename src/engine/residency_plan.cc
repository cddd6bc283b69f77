// SPDX-License-Identifier: Apache-2.0
//
// Following a plan. Each link takes the plan's operations in the order of their positions, those
// that may start; a lease waits for those of its own tile. It never waits for another caller: where
// more than transfers is between it and what the plan does for it, it is pulled, that is, served on
// demand, into room that the plan leaves for this. MODEL.md in src/plan has the argument.
//
// The plan's frames are preferences. A copy that does not lie where the plan has it leaves when its
// last lease has ended, or when the plan needs its frame; its tile's next lease is then pulled. So
// a plan can be taken up from any state of the tiles.

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

// On their way at a time, of each link: enough to keep it busy while one ends.
constexpr int kMostInFlight = 16;
// Operations whose frames are not free yet that are looked at in one go.
constexpr size_t kMostWaiting = 64;
// A step with more uses that the plan does not have than this, and than it has followed, is
// another.
constexpr uint64_t kFewExtra = 8;

}  // namespace

void Residency::FollowPlan(std::shared_ptr<const StepPlan> step) {
  SPILLWAY_CHECK(!in_use());
  LeavePlan(/*deviated=*/false);
  stats_.plan.planned_bytes = step->plan.bytes.total();
  stats_.plan.bytes_bound = step->bound.total();
  stats_.plan.nvme_bytes_bound = step->bound.nvme;
  following_.emplace(Following{.number = ++num_followings_, .follower = PlanFollower(step)});
  while (following_->follower.num_tiles() < tiles_.size()) following_->follower.AddTile();
  for (TileIndex tile = 0; tile < tiles_.size(); ++tile) {
    if (copy(tiles_[tile], Tier::kDevice).state == Copy::State::kNone &&
        copy(tiles_[tile], Tier::kPinned).state == Copy::State::kNone) {
      continue;
    }
    for (const Tier tier : {Tier::kDevice, Tier::kPinned}) (void)SettleCopy(tile, tier);
    following_->unsettled.push_back(tile);
  }
}

void Residency::LeavePlan(bool deviated) {
  if (!following_) return;
  if (deviated) ++stats_.plan.deviations;
  following_.reset();
  for (Job& job : acquires_) job.use.reset();
}

// --- What callers do ---

std::optional<PlanFollower::Count> Residency::Ask(plan::TraceEvent::Kind kind, TileIndex tile,
                                                  Tier tier, Access access) {
  if (!following_) return std::nullopt;
  PlanFollower& follower = following_->follower;
  const auto use = follower.Ask({.tile = tile, .kind = kind, .tier = tier, .access = access});
  if (!use && follower.extra_in_step() > follower.asked_in_step() + kFewExtra)
    LeavePlan(/*deviated=*/true);
  return use;
}

Residency::Outcome Residency::AdvancePlannedAcquire(Job& job) {
  PlanFollower& follower = following_->follower;
  Tile& tile = tiles_[job.tile];
  Copy& target = copy(tile, job.tier);
  if (!CanLease(job) || target.leaving) return Outcome::kWaiting;
  const bool is_here = target.state == Copy::State::kReady;
  if (!follower.OpsBeforeAreOver(job.tile, *job.use)) {
    // A stream can wait for the copy itself.
    const bool arrives = tile.transfer == Transfer::kCopyIn && tile.planned &&
                         tile.planned->following == following_->number && tile.planned->op &&
                         follower.IsLastBefore(*tile.planned->op, job.tile, *job.use);
    if (job.stream != kNoStream && job.tier == Tier::kDevice && arrives) {
      Grant(job, /*after_copy=*/true);
      return Outcome::kDone;
    }
    if (follower.IsRunning(job.tile)) return Outcome::kWaiting;
    // A reader joins those that read already.
    const bool is_shared =
        is_here && !Writes(job.access) && leases_.leases(job.tile, job.tier) > target.draining;
    if (is_shared) {
      follower.Skip(job.tile, *job.use);
    } else if (!following_->is_blocked_by_lease && follower.MayWait(job.tile, *job.use)) {
      return Outcome::kWaiting;
    } else {
      Pull(job);
      return Outcome::kProgress;
    }
  }
  if (tile.transfer != Transfer::kNone && (Writes(job.access) || !is_here))
    return Outcome::kWaiting;
  if (target.state == Copy::State::kHeld && job.access == Access::kDiscard) SetReady(target);
  if (target.state != Copy::State::kReady) {
    Pull(job);  // it had to leave since
    return Outcome::kProgress;
  }
  Grant(job, /*after_copy=*/false);
  return Outcome::kDone;
}

void Residency::Pull(Job& job) {
  following_->follower.Skip(job.tile, *job.use);
  job.pulled = true;
  ++stats_.plan.pulled;
}

// Where the plan has the copy by now.
std::optional<uint64_t> Residency::AllocateAsPlanned(TileIndex tile, Tier tier,
                                                     uint64_t frame_bytes) {
  const auto planned = following_->follower.PlannedAt(tile, tier);
  const bool is_free = planned && arenas_[At(tier)].AllocateAt(*planned, frame_bytes, tile);
  return is_free ? planned : std::nullopt;
}

// Whether the frame that the plan has for the copy is being made free.
bool Residency::IsPlannedFrameComing(TileIndex index, Tier tier) {
  const PlanFollower& follower = following_->follower;
  const auto planned = follower.PlannedAt(index, tier);
  return planned && !follower.takes_any_frame() &&
         MakeWay(tier, *planned, FrameBytes(tiles_[index]));
}

// --- What moves ---

bool Residency::AdvancePlan() {
  if (IsPlanPaused()) return false;
  const bool was_blocked = std::exchange(following_->is_blocked_by_lease, false);
  bool progress = false;
  for (int link = 0; link < plan::kNumLinks; ++link)
    progress |= AdvanceLink(static_cast<plan::Link>(link));
  progress |= AdvanceFree();
  progress |= AdvanceEntry();
  progress |= Settle();
  while (const auto moved = following_->follower.TakeMoved()) {
    ++stats_.plan.steps;
    stats_.plan.nvme = {(*moved)[plan::Link::kRead], (*moved)[plan::Link::kWrite]};
    stats_.plan.pinned = {(*moved)[plan::Link::kCopyIn], (*moved)[plan::Link::kCopyOut]};
  }
  progress |= following_->is_blocked_by_lease && !was_blocked;
  return progress || PullIfNothingMoves();
}

bool Residency::AdvanceLink(plan::Link link) {
  bool progress = false;
  PlanFollower& follower = following_->follower;
  int& in_flight = following_->in_flight[static_cast<size_t>(link)];
  std::vector<PlanFollower::Count> waiting;
  while (in_flight < kMostInFlight && waiting.size() < kMostWaiting) {
    const auto op = follower.Take(link);
    if (!op) break;
    const TileIndex tile = follower.OpAt(*op).tile;
    switch (TryOp(follower.OpAt(*op), Planned{following_->number, op})) {
      case Step::kWaiting: waiting.push_back(*op); continue;
      case Step::kDone:
        if (HasMoved(follower.OpAt(*op))) follower.CountMoved(*op, tiles_[tile].size_bytes);
        follower.End(*op);
        break;
      case Step::kStarted:
        follower.Begin(*op);
        following_->running.push_back(*op);
        ++in_flight;
        if (tiles_[tile].transfer != Transfer::kZero)
          follower.CountMoved(*op, tiles_[tile].size_bytes);
        break;
    }
    progress = true;
  }
  for (const PlanFollower::Count op : waiting) follower.PutBack(op);
  return progress;
}

// Whether the bytes of an operation that had nothing to do are below: a commit, or a copy's
// leaving, has brought them there in its stead.
bool Residency::HasMoved(const plan::Op& op) const {
  const Tile& tile = tiles_[op.tile];
  return op.kind == plan::Op::Kind::kWrite
             ? tile.stored
             : op.kind == plan::Op::Kind::kCopyOut && (tile.stored || Ready(tile, Tier::kPinned));
}

bool Residency::AdvanceFree() {
  bool progress = false;
  PlanFollower& follower = following_->follower;
  std::vector<PlanFollower::Count> waiting;
  while (const auto op = follower.TakeFree()) {
    switch (TryOp(follower.OpAt(*op), Planned{following_->number, op})) {
      case Step::kWaiting: waiting.push_back(*op); continue;
      case Step::kDone: follower.End(*op); break;
      case Step::kStarted: follower.Begin(*op); break;  // filling with zeros
    }
    progress = true;
  }
  for (const PlanFollower::Count op : waiting) follower.PutBack(op);
  return progress;
}

// In the first step, what the plan has in memory when a step begins is brought there in the order
// in which it is used. What is not there in time is pulled.
bool Residency::AdvanceEntry() {
  PlanFollower& follower = following_->follower;
  const std::vector<plan::TraceEvent>& events = follower.step()->trace.events;
  bool progress = false;
  for (; follower.is_first_step() && following_->next_entry < events.size();
       ++following_->next_entry) {
    if (transfers_ >= kMostInFlight) return progress;
    const TileIndex index = events[following_->next_entry].tile;
    const Tile& tile = tiles_[index];
    if (follower.HasBeenAskedFor(index) || follower.HasOpDue(index) || tile.zero) continue;
    for (const Tier tier : {Tier::kPinned, Tier::kDevice}) {
      const auto place = follower.PlannedAt(index, tier);
      if (!place || copy(tile, tier).state != Copy::State::kNone) continue;
      plan::Op op;
      op.kind = tier == Tier::kDevice ? plan::Op::Kind::kCopyIn : plan::Op::Kind::kRead;
      op.tile = index;
      op.tier = tier;
      op.offset = *place;
      progress |= TryOp(op, Planned{following_->number, std::nullopt}) == Step::kStarted;
    }
  }
  return progress;
}

void Residency::PlannedTransferDone(const Planned& planned) {
  if (!following_ || following_->number != planned.following || !planned.op) return;
  const plan::Op& op = following_->follower.OpAt(*planned.op);
  if (plan::Moves(op.kind)) --following_->in_flight[static_cast<size_t>(plan::LinkOf(op.kind))];
  std::erase(following_->running, *planned.op);
  following_->follower.End(*planned.op);
}

// Whether the plan is moving something out of the tier.
bool Residency::IsRoomComing(Tier tier) const {
  const std::vector<PlanFollower::Count>& running = following_->running;
  return std::any_of(running.begin(), running.end(), [&](PlanFollower::Count op) {
    return following_->follower.IsLastOf(op, tier);
  });
}

bool Residency::LiesAsPlanned(TileIndex index, Tier tier) const {
  const Tile& tile = tiles_[index];
  const uint64_t offset = copy(tile, tier).offset;
  if (IsHome(tile, tier)) return true;
  if (tier == Tier::kPinned && HasOwnPlace(tile) && offset == tile.own_place) return true;
  const auto planned = following_->follower.PlannedAt(index, tier);
  return following_->follower.takes_any_frame() ? planned.has_value() : planned == offset;
}

bool Residency::TakeFrameAt(TileIndex index, Tier tier, uint64_t offset) {
  Tile& tile = tiles_[index];
  Copy& target = copy(tile, tier);
  if (target.leaving) return false;
  if (target.state == Copy::State::kHeld && target.offset == offset) return true;
  if (target.state == Copy::State::kHeld && target.holder == nullptr && !IsHome(tile, tier))
    DropFrame(index, tier);
  if (target.state != Copy::State::kNone) return false;
  ArenaMap& arena = arenas_[At(tier)];
  const plan::PlanOptions& options = following_->follower.step()->plan.options;
  const uint64_t reserve =
      tier == Tier::kDevice ? options.device_reserve_bytes : options.pinned_reserve_bytes;
  if (following_->follower.takes_any_frame() &&
      arena.size_bytes() - arena.used_bytes() < FrameBytes(tile) + reserve) {
    following_->is_blocked_by_lease = true;
    return false;
  }
  std::optional<uint64_t> taken;
  if (arena.AllocateAt(offset, FrameBytes(tile), index)) {
    taken = offset;
  } else if (following_->follower.takes_any_frame()) {
    taken = arena.Allocate(FrameBytes(tile), index, homes_bytes_[At(tier)]);
  }
  if (!taken) {
    (void)MakeWay(tier, offset, FrameBytes(tile));
    return false;
  }
  target.state = Copy::State::kHeld;
  target.offset = *taken;
  Count(index, tier, true);
  return true;
}

// What lies there and is not the plan's leaves. Whether that is all that lies there.
bool Residency::MakeWay(Tier tier, uint64_t offset, uint64_t size_bytes) {
  const ArenaMap& arena = arenas_[At(tier)];
  bool all_leave = true;
  std::vector<TileIndex> strangers;
  for (auto it = arena.At(offset); it != arena.segments().end() && it->first < offset + size_bytes;
       ++it) {
    if (it->second.kind != ArenaMap::Kind::kFrame) continue;
    const TileIndex index = it->second.tile;
    const Copy& held = copy(tiles_[index], tier);
    const bool is_leased = leases_.leases(index, tier) > held.draining;
    const bool is_stranger = !LiesAsPlanned(index, tier);
    following_->is_blocked_by_lease |= is_stranger && is_leased;
    all_leave &= is_stranger;
    if (is_stranger) strangers.push_back(index);
  }
  for (const TileIndex index : strangers) {
    const uint32_t leases = leases_.leases(index, tier);
    const Copy& held = copy(tiles_[index], tier);
    const bool drains = leases > 0 && leases == held.draining;
    all_leave &= SettleCopy(index, tier) || held.leaving || drains;
  }
  return all_leave;
}

// Does what the operation says, as far as it still has to be done: a commit may have written a tile
// already, the caller may have discarded it, its bytes may never have been written, or it had to
// leave. What cannot be done then is not done, and the tile's next lease sees to it.
Residency::Step Residency::TryOp(const plan::Op& op, const Planned& planned) {
  Tile& tile = tiles_[op.tile];
  if (tile.transfer != Transfer::kNone || tile.discard) return Step::kWaiting;
  // Another writer than the plan's: the tile has strayed.
  if (op.kind != plan::Op::Kind::kDrop && IsWritten(op.tile)) return Step::kDone;
  // A copy that leaves is gone before the operation begins.
  if (tile.copies[0].leaving || tile.copies[1].leaving) return Step::kWaiting;
  const bool in_pinned = Ready(tile, Tier::kPinned), on_device = Ready(tile, Tier::kDevice);
  const auto start = [&](Transfer transfer) {
    tile.planned = planned;
    const MoveReason reason = transfer == Transfer::kWrite     ? MoveReason::kWriteBehind
                              : transfer == Transfer::kCopyOut ? MoveReason::kMakeRoom
                                                               : MoveReason::kAhead;
    StartTransfer(op.tile, transfer, reason);
    return Step::kStarted;
  };
  switch (op.kind) {
    case plan::Op::Kind::kRead:
    case plan::Op::Kind::kZero:
      if (in_pinned || (!tile.stored && !tile.zero && !on_device)) return Step::kDone;
      if (!TakeFrameAt(op.tile, Tier::kPinned, op.offset)) return Step::kWaiting;
      return start(on_device     ? Transfer::kCopyOut
                   : tile.stored ? Transfer::kRead
                                 : Transfer::kZero);
    case plan::Op::Kind::kWrite:
      if (tile.stored || tile.zero || !in_pinned) return Step::kDone;
      return start(Transfer::kWrite);
    case plan::Op::Kind::kCopyIn:
      if (on_device || !in_pinned) return Step::kDone;
      if (!TakeFrameAt(op.tile, Tier::kDevice, op.offset)) return Step::kWaiting;
      return start(Transfer::kCopyIn);
    case plan::Op::Kind::kCopyOut:
      if (in_pinned || !on_device) return Step::kDone;
      if (!TakeFrameAt(op.tile, Tier::kPinned, op.offset)) return Step::kWaiting;
      return start(Transfer::kCopyOut);
    case plan::Op::Kind::kTake:
      if (Ready(tile, op.tier)) return Step::kDone;
      return TakeFrameAt(op.tile, op.tier, op.offset) ? Step::kDone : Step::kWaiting;
    case plan::Op::Kind::kDrop: {
      const Copy& held = copy(tile, op.tier);
      const bool has_frame = held.state == Copy::State::kHeld || held.state == Copy::State::kReady;
      if (!has_frame || held.leaving || held.holder != nullptr) return Step::kDone;
      LeaseCount& leases = leases_.count(op.tile, op.tier);
      // A stream may still read for a lease that was released before the one the plan waits for.
      // Readers that came since keep the copy; it leaves after them.
      if (!leases.Close()) return leases.leases() == held.draining ? Step::kWaiting : Step::kDone;
      const bool elsewhere = tile.stored || tile.zero || held.state == Copy::State::kHeld ||
                             (op.tier == Tier::kDevice ? in_pinned : on_device);
      if (elsewhere) {
        DropFrame(op.tile, op.tier);
      } else {
        following_->unsettled.push_back(op.tile);
      }
      return Step::kDone;
    }
  }
  return Step::kDone;
}

// --- What does not lie as planned ---

bool Residency::Settle() {
  bool progress = false;
  std::vector<TileIndex> later;
  for (const TileIndex index : std::exchange(following_->unsettled, {})) {
    if (IsLeased(index)) continue;  // it comes again when that lease ends
    const PlanFollower& follower = following_->follower;
    const bool moves = tiles_[index].transfer != Transfer::kNone || follower.HasOpDue(index);
    if (moves || follower.IsWanted(index)) {
      later.push_back(index);
      continue;
    }
    for (const Tier tier : {Tier::kDevice, Tier::kPinned}) progress |= SettleCopy(index, tier);
  }
  following_->unsettled.insert(following_->unsettled.end(), later.begin(), later.end());
  return progress;
}

// Whether the copy leaves since it does not lie where the plan has it.
bool Residency::SettleCopy(TileIndex index, Tier tier) {
  Tile& tile = tiles_[index];
  const Copy& held = copy(tile, tier);
  const bool has_frame = held.state == Copy::State::kHeld || held.state == Copy::State::kReady;
  if (!has_frame || held.leaving || held.holder != nullptr || LiesAsPlanned(index, tier))
    return false;
  if (tier == Tier::kPinned && !options_.has_store && !tile.zero) return false;
  if (IsWritten(index) || tile.discard || following_->stuck.count(index) > 0) return false;
  // Who waits for the tile gets it first, or two who wait could take it from each other for ever.
  const auto waits = [index](const Job& job) { return job.tile == index; };
  if (std::any_of(acquires_.begin(), acquires_.end(), waits)) return false;
  if (!leases_.count(index, tier).Close()) return false;
  copy(tile, tier).leaving = true;
  AddJob(evictions_, Job::Kind::kEvict, index, tier);
  return true;
}

// Frames that are not where the plan has them can keep its operations from one another. Then a
// lease that waits for them is pulled.
bool Residency::PullIfNothingMoves() {
  if (transfers_ > 0 || num_draining_ > 0) return false;
  for (Job& job : acquires_) {
    const bool waits = job.use && !job.pulled &&
                       !following_->follower.OpsBeforeAreOver(job.tile, *job.use) &&
                       !copy(tiles_[job.tile], job.tier).leaving && CanLease(job);
    if (!waits) continue;
    Pull(job);
    return true;
  }
  return false;
}

}  // namespace spillway::engine
