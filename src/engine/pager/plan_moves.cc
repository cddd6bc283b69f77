// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/plan_moves.h"

#include <algorithm>
#include <utility>

namespace spillway::engine {
namespace {

// The most transfers in flight on each link: enough to keep it busy while one ends.
constexpr int kMostInFlight = 16;
// The most operations of a queue that wait after they could not start; no others are tried then.
constexpr size_t kMostWaiting = 16;

}  // namespace

bool PlanMoves::Advance() {
  if (MustTryAgain()) TryAgain();
  bool progress = false;
  for (Queue& queue : queues_) progress |= AdvanceQueue(queue);
  return AdvanceEntry() || progress;
}

bool PlanMoves::StoppedEarly() {
  const bool is_cut = std::any_of(queues_.begin(), queues_.end(),
                                  [](const Queue& queue) { return queue.idle_left == 0; });
  return is_cut && std::exchange(has_idled_, false);
}

std::optional<PlanFollower::Count> PlanMoves::Take(const Queue& queue) {
  PlanFollower& follower = frames_.follower();
  if (!queue.link) return follower.TakeFree();
  return follower.in_flight(*queue.link) < kMostInFlight ? follower.Take(*queue.link)
                                                         : std::nullopt;
}

// Tries the queue's operations, one after the other, until there is none, too many wait, or the
// queue's budget of operations that move nothing is used up, which includes those that were
// skipped. Waiting operations are tried again when something has ended that they may wait for.
bool PlanMoves::AdvanceQueue(Queue& queue) {
  bool progress = false;
  PlanFollower& follower = frames_.follower();
  while (queue.idle_left > 0 && queue.waiting.size() < kMostWaiting) {
    const auto number = Take(queue);
    if (!number) break;
    if (!follower.tiles().MayStartNow(*number)) {
      --queue.idle_left;
      progress = has_idled_ = true;
      continue;
    }
    const plan::Op& op = follower.OpAt(*number);
    const uint64_t size_bytes = pages_[op.tile].size_bytes();
    const bool has_link = plan::HasLink(op.kind);
    const Step step = Try(op, number);
    switch (step) {
      case Step::kWaiting: queue.waiting.push_back(*number); continue;
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
    --queue.idle_left;
    has_idled_ = true;
  }
  return progress;
}

// Whether something has ended that waiting operations may wait for, or operations that have become
// ready since are behind a full list of waiting ones.
bool PlanMoves::MustTryAgain() const {
  if (endings_ != pages_.num_endings()) return true;
  const bool is_full = std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) {
    return queue.waiting.size() >= kMostWaiting;
  });
  return is_full && due_ != frames_.follower().num_due();
}

void PlanMoves::TryAgain() {
  endings_ = pages_.num_endings();
  due_ = frames_.follower().num_due();
  frames_.ForgetBlocked();
  for (Queue& queue : queues_) {
    for (const PlanFollower::Count op : queue.waiting) frames_.follower().PutBack(op);
    queue.waiting.clear();
  }
}

// Whether the bytes of an operation that had nothing to do are in the lower tier: a commit or an
// eviction has moved them there in its place.
bool PlanMoves::HasMoved(const plan::Op& op) const {
  const Page& page = pages_[op.tile];
  return op.kind == plan::Transfer::kWrite
             ? page.stored
             : op.kind == plan::Transfer::kCopyOut && (page.stored || page.is_ready(Tier::kPinned));
}

// In the first step, brings in the tiles that the plan has in memory when a step begins, in the
// order of their uses. The lease of a tile that is not there in time is pulled.
bool PlanMoves::AdvanceEntry() {
  PlanFollower& follower = frames_.follower();
  const std::vector<plan::TraceEvent>& events = follower.step().trace.events;
  bool progress = false;
  for (; follower.is_first_step() && next_entry_ < events.size(); ++next_entry_, --entry_left_) {
    if (transfers_.in_flight() >= kMostInFlight || entry_left_ == 0) return progress;
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

// Carries out the operation as far as it still applies: a commit may have written the tile already,
// the caller may have discarded it, it may never have been written, or it may have been evicted. An
// operation that cannot be carried out has no effect, and the tile's next lease brings in the
// bytes.
PlanMoves::Step PlanMoves::Try(const plan::Op& op, std::optional<PlanFollower::Count> number) {
  Page& page = pages_[op.tile];
  if (page.is_moving() || page.discard) return Step::kWaiting;
  // The writer is not the plan's: the tile has strayed from the plan.
  if (op.kind != plan::Transfer::kDrop && pages_.leases().IsWritten(op.tile)) return Step::kDone;
  // The operation begins only after the leaving copy is gone.
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
  const auto start_with_frame = [&](Tier tier, Transfer transfer) {
    const Step taken = frames_.Take(op.tile, tier, op.offset);
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
      return frames_.Take(op.tile, op.tier, op.offset);
    case plan::Transfer::kDrop: return TryDrop(op);
  }
  return Step::kDone;
}

PlanMoves::Step PlanMoves::TryDrop(const plan::Op& op) {
  const Page& page = pages_[op.tile];
  const Copy& held = page.copy(op.tier);
  const Leases& leases = pages_.leases();
  if (!held.has_frame() || held.leaving || held.holder != nullptr) return Step::kDone;
  // A stream may still read for a lease that was released before the one that the plan waits for;
  // the drop waits for it. If newer readers hold the copy, it leaves after their leases have ended.
  if (leases.held(op.tile, op.tier) > 0)
    return leases.HasHolder(op.tile, op.tier) ? Step::kDone : Step::kWaiting;
  if (pages_[op.tile].MayForget(op.tier)) {
    pages_.DropFrame(op.tile, op.tier);
  } else {
    frames_.Unsettle(op.tile);
  }
  return Step::kDone;
}

}  // namespace spillway::engine
