// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/plan_moves.h"

#include <algorithm>
#include <utility>

namespace spillway::engine {
namespace {

// On their way at a time, of each link: enough to keep it busy while one ends.
constexpr int kMostInFlight = 16;
// Operations of a queue that cannot start yet that are looked at in one go.
constexpr size_t kMostWaiting = 16;
// Events that are looked at in one go, for tiles that the plan has in memory when it begins.
constexpr int kMostLookedAt = 64;

}  // namespace

bool PlanMoves::Advance() {
  if (MustTryAgain()) TryAgain();
  PlanFollower& follower = frames_.follower();
  bool progress = false;
  for (size_t link = 0; link < kFree; ++link) {
    const auto transfer = static_cast<plan::Transfer>(link);
    progress |= AdvanceQueue(link, [&]() -> std::optional<PlanFollower::Count> {
      const bool may_start = follower.in_flight(transfer) < kMostInFlight;
      return may_start ? follower.Take(transfer) : std::nullopt;
    });
  }
  progress |= AdvanceQueue(kFree, [&] { return follower.TakeFree(); });
  return AdvanceEntry() || progress;
}

bool PlanMoves::StoppedEarly() {
  const bool is_cut = std::count(idle_left_.begin(), idle_left_.end(), 0) > 0;
  return is_cut && std::exchange(has_idled_, false);
}

// Tries what `take` gives, one after the other, until there is none, too many wait, or as many as
// are left have moved nothing. Where one finds no room, none behind it takes a frame. What waits is
// tried again when something has ended that it may wait for.
bool PlanMoves::AdvanceQueue(size_t queue,
                             absl::FunctionRef<std::optional<PlanFollower::Count>()> take) {
  bool progress = false;
  PlanFollower& follower = frames_.follower();
  Waiting& waiting = waiting_[queue];
  int& idle_left = idle_left_[queue];
  while (idle_left > 0 && waiting.ops.size() < kMostWaiting) {
    const auto number = take();
    if (!number) break;
    const plan::Op& op = follower.OpAt(*number);
    const uint64_t size_bytes = pages_[op.tile].size_bytes();
    const bool has_link = plan::HasLink(op.kind);
    const Step step = waiting.has_room || !NeedsFrame(op) ? Try(op, number) : Step::kWaiting;
    switch (step) {
      case Step::kNoRoom: waiting.has_room = false; [[fallthrough]];
      case Step::kWaiting: waiting.ops.push_back(*number); continue;
      case Step::kDone:
        if (has_link && HasMoved(op)) follower.CountMoved(*number, size_bytes);
        follower.End(*number);
        frames_.TileIsDone(op.tile);
        break;
      case Step::kStarted:
        follower.Begin(*number);
        if (has_link && pages_[op.tile].transfer != Transfer::kZero)
          follower.CountMoved(*number, size_bytes);
        break;
    }
    progress = true;
    if (has_link && step == Step::kStarted) continue;
    --idle_left;
    has_idled_ = true;
  }
  return progress;
}

// Something has ended that they may wait for; or what has come since is behind too many of them.
bool PlanMoves::MustTryAgain() const {
  if (endings_ != pages_.num_endings()) return true;
  const bool is_full = std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& waiting) {
    return waiting.ops.size() >= kMostWaiting;
  });
  return is_full && due_ != frames_.follower().num_due();
}

void PlanMoves::TryAgain() {
  endings_ = pages_.num_endings();
  due_ = frames_.follower().num_due();
  frames_.ForgetBlocked();
  for (Waiting& waiting : waiting_) {
    for (const PlanFollower::Count op : waiting.ops) frames_.follower().PutBack(op);
    waiting.ops.clear();
    waiting.has_room = true;
  }
}

// Whether the bytes of an operation that had nothing to do are below: a commit, or a copy's
// leaving, has brought them there in its stead.
bool PlanMoves::HasMoved(const plan::Op& op) const {
  const Page& page = pages_[op.tile];
  return op.kind == plan::Transfer::kWrite
             ? page.stored
             : op.kind == plan::Transfer::kCopyOut && (page.stored || page.is_ready(Tier::kPinned));
}

// Whether it can only start with a frame that its tile has not.
bool PlanMoves::NeedsFrame(const plan::Op& op) const {
  const bool takes = op.kind != plan::Transfer::kDrop && op.kind != plan::Transfer::kWrite;
  return takes && pages_[op.tile].copy(op.tier).state == Copy::State::kNone;
}

// In the first step, what the plan has in memory when a step begins is brought there in the order
// in which it is used. What is not there in time is pulled.
bool PlanMoves::AdvanceEntry() {
  PlanFollower& follower = frames_.follower();
  const std::vector<plan::TraceEvent>& events = follower.step().trace.events;
  bool progress = false;
  int looked_at = 0;
  for (; follower.is_first_step() && next_entry_ < events.size(); ++next_entry_) {
    if (transfers_.in_flight() >= kMostInFlight || ++looked_at > kMostLookedAt) return progress;
    const TileIndex tile = events[next_entry_].tile;
    const Page& page = pages_[tile];
    const PlanProgress& tiles = follower.tiles();
    if (tiles.HasBeenAskedFor(tile) || tiles.HasOpDue(tile) || page.zero) continue;
    for (const Tier tier : {Tier::kPinned, Tier::kDevice}) {
      const auto place = tiles.PlannedAt(tile, tier);
      if (!place || page.copy(tier).state != Copy::State::kNone) continue;
      plan::Op op;
      op.kind = tier == Tier::kDevice ? plan::Transfer::kCopyIn : plan::Transfer::kRead;
      op.tile = tile;
      op.tier = tier;
      op.offset = *place;
      progress |= Try(op, std::nullopt) == Step::kStarted;
    }
  }
  return progress;
}

// Does what the operation says, as far as it still has to be done: a commit may have written a tile
// already, the caller may have discarded it, its bytes may never have been written, or it had to
// leave. What cannot be done then is not done, and the tile's next lease sees to it.
PlanMoves::Step PlanMoves::Try(const plan::Op& op, std::optional<PlanFollower::Count> number) {
  Page& page = pages_[op.tile];
  if (page.is_moving() || page.discard) return Step::kWaiting;
  // Another writer than the plan's: the tile has strayed.
  if (op.kind != plan::Transfer::kDrop && pages_.leases().IsWritten(op.tile)) return Step::kDone;
  // A copy that leaves is gone before the operation begins.
  if (page.is_leaving()) return Step::kWaiting;
  const bool in_pinned = page.is_ready(Tier::kPinned), on_device = page.is_ready(Tier::kDevice);
  const auto start = [&](Transfer transfer) {
    page.planned = PlannedOp{run_, number};
    const MoveReason reason = transfer == Transfer::kWrite     ? MoveReason::kWriteBehind
                              : transfer == Transfer::kCopyOut ? MoveReason::kMakeRoom
                                                               : MoveReason::kAhead;
    transfers_.Start(op.tile, transfer, reason, /*job=*/nullptr);
    return Step::kStarted;
  };
  const auto take = [&](Tier tier) {
    switch (frames_.Take(op.tile, tier, op.offset)) {
      case PlanFrames::Taken::kYes: return Step::kDone;
      case PlanFrames::Taken::kNotYet: return Step::kWaiting;
      case PlanFrames::Taken::kNoRoom: return Step::kNoRoom;
    }
    return Step::kWaiting;
  };
  const auto start_with_frame = [&](Tier tier, Transfer transfer) {
    const Step taken = take(tier);
    return taken == Step::kDone ? start(transfer) : taken;
  };
  switch (op.kind) {
    case plan::Transfer::kRead:
    case plan::Transfer::kZero:
      if (in_pinned || (!page.stored && !page.zero && !on_device)) return Step::kDone;
      return start_with_frame(Tier::kPinned, on_device     ? Transfer::kCopyOut
                                             : page.stored ? Transfer::kRead
                                                           : Transfer::kZero);
    case plan::Transfer::kWrite:
      if (page.stored || page.zero || !in_pinned) return Step::kDone;
      return start(Transfer::kWrite);
    case plan::Transfer::kCopyIn:
      if (on_device || !in_pinned) return Step::kDone;
      return start_with_frame(Tier::kDevice, Transfer::kCopyIn);
    case plan::Transfer::kCopyOut:
      if (in_pinned || !on_device) return Step::kDone;
      return start_with_frame(Tier::kPinned, Transfer::kCopyOut);
    case plan::Transfer::kTake:
      if (page.is_ready(op.tier)) return Step::kDone;
      return take(op.tier);
    case plan::Transfer::kDrop: return TryDrop(op);
  }
  return Step::kDone;
}

PlanMoves::Step PlanMoves::TryDrop(const plan::Op& op) {
  const Page& page = pages_[op.tile];
  const Copy& held = page.copy(op.tier);
  Leases& leases = pages_.leases();
  if (!held.has_frame() || held.leaving || held.holder != nullptr) return Step::kDone;
  // A stream may still read for a lease that was released before the one the plan waits for.
  // Readers that came since keep the copy; it leaves after them.
  if (!leases.Close(op.tile, op.tier))
    return leases.HasHolder(op.tile, op.tier) ? Step::kDone : Step::kWaiting;
  if (pages_.MayForget(op.tile, op.tier)) {
    pages_.DropFrame(op.tile, op.tier);
  } else {
    frames_.Unsettle(op.tile);
  }
  return Step::kDone;
}

}  // namespace spillway::engine
