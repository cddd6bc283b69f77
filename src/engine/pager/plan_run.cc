// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/plan_run.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace spillway::engine {
namespace {

// On their way at a time, of each link: enough to keep it busy while one ends.
constexpr int kMostInFlight = 16;
// Operations of a queue that cannot start yet that are looked at in one go.
constexpr size_t kMostWaiting = 16;
// Events that are looked at in one go, for tiles that the plan has in memory when it begins.
constexpr int kMostLookedAt = 64;

}  // namespace

void PlanRun::Follow(std::shared_ptr<PlanFollower> plan) {
  Abandon(/*deviated=*/false);
  PlanStats& stats = pages_.stats().plan;
  const StepPlan& step = plan->step();
  stats.planned_bytes = step.plan.bytes.total();
  stats.bytes_bound = step.bound.total();
  stats.nvme_bytes_bound = step.bound.nvme;
  ++number_;
  next_entry_ = 0;
  frames_.emplace(std::move(plan), &pages_, &jobs_);
  room_.SetPlan(&*frames_);
}

// This is where a plan is abandoned.
void PlanRun::Abandon(bool deviated) {
  if (!frames_) return;
  if (deviated) ++pages_.stats().plan.deviations;
  room_.SetPlan(nullptr);
  frames_.reset();
  waiting_ = {};
  discards_.clear();
  for (Job& job : jobs_.of(Job::Kind::kAcquire)) job.use.reset();
}

void PlanRun::EndStep() {
  if (frames_ && !frames_->follower().EndStep()) Abandon(/*deviated=*/true);
}

// --- What callers do ---

std::optional<PlanFollower::Count> PlanRun::AskPlan(const plan::TraceEvent& use) {
  PlanFollower& follower = frames_->follower();
  const auto number = follower.Ask(use);
  if (!number && follower.IsAnotherStep()) Abandon(/*deviated=*/true);
  return number;
}

void PlanRun::Granted(TileIndex tile) {
  if (FollowsUsesOf(tile)) frames_->follower().Happened(tile);
}

void PlanRun::SharedOfPlan(TileIndex tile, Tier tier) {
  const auto use = AskPlan({.tile = tile, .tier = tier});
  if (!use) return;
  PlanFollower& follower = frames_->follower();
  // What the plan was to do with the tile before was not needed.
  if (!follower.tiles().IsRunning(tile)) follower.Skip(tile, *use);
  follower.Happened(tile);
}

void PlanRun::DrainBegan(TileIndex tile, Tier tier) {
  if (!FollowsUsesOf(tile)) return;
  PlanFollower& follower = frames_->follower();
  follower.ReleaseAsked(tile);
  // A caller that is ahead of its stream must not lease a tile that the plan moves when this lease
  // ends.
  if (!follower.tiles().IsReadNext(tile, tier)) (void)pages_.leases().Close(tile, tier);
}

void PlanRun::DiscardAsked(TileIndex tile) {
  if (frames_ && AskPlan({.tile = tile, .kind = plan::TraceEvent::Kind::kDiscard}))
    ++discards_[tile];
}

void PlanRun::Discarded(TileIndex tile) {
  if (!frames_) return;
  for (auto asked = discards_.extract(tile); asked && asked.mapped() > 0; --asked.mapped())
    Granted(tile);
}

// --- Leases that wait for the plan ---

PlanRun::Answer PlanRun::AdvanceAcquire(Job& job) {
  PlanFollower& follower = frames_->follower();
  const Page& page = pages_[job.tile];
  Copy& target = pages_[job.tile].copy(job.tier);
  if (!pages_.CanLease(job) || target.leaving) return Answer::kWaiting;
  if (!follower.tiles().OpsBeforeAreOver(job.tile, *job.use)) {
    // A stream can wait for the copy itself.
    const bool arrives = page.transfer == Transfer::kCopyIn && page.planned &&
                         page.planned->run == number_ && page.planned->op &&
                         follower.tiles().IsLastBefore(*page.planned->op, job.tile, *job.use);
    if (job.stream != kNoStream && job.tier == Tier::kDevice && arrives)
      return Answer::kGrantAfterCopy;
    if (follower.tiles().IsRunning(job.tile)) return Answer::kWaiting;
    // A reader joins those that read already.
    const bool is_shared =
        target.is_ready() && !Writes(job.access) && pages_.leases().HasHolder(job.tile, job.tier);
    if (is_shared) {
      follower.Skip(job.tile, *job.use);
    } else if (!frames_->is_blocked_by_lease() && follower.MayWait(job.tile, *job.use)) {
      return Answer::kWaiting;
    } else {
      Pull(job);
      return Answer::kPulled;
    }
  }
  if (page.is_moving() && (Writes(job.access) || !target.is_ready())) return Answer::kWaiting;
  if (target.state == Copy::State::kHeld && job.access == Access::kDiscard)
    PageTable::SetReady(target);
  if (target.is_ready()) return Answer::kGrant;
  Pull(job);  // it had to leave since
  return Answer::kPulled;
}

void PlanRun::Pull(Job& job) {
  frames_->follower().Skip(job.tile, *job.use);
  job.pulled = true;
  ++pages_.stats().plan.pulled;
}

void PlanRun::CountPulled(const Job& job, Transfer transfer) {
  if (!job.pulled || !job.use || transfer == Transfer::kZero) return;
  frames_->follower().CountPulled(job.tile, *job.use, transfer, pages_[job.tile].size_bytes());
}

// Frames that are not where the plan has them can keep its operations from one another. Then a
// lease that waits for them is pulled.
bool PlanRun::PullIfNothingMoves() {
  if (pages_.transfers_in_flight() > 0 || pages_.leases().num_draining() > 0) return false;
  for (Job& job : jobs_.of(Job::Kind::kAcquire)) {
    const bool waits = job.use && !job.pulled &&
                       !frames_->follower().tiles().OpsBeforeAreOver(job.tile, *job.use) &&
                       !pages_[job.tile].copy(job.tier).leaving && pages_.CanLease(job);
    if (!waits) continue;
    if (!std::exchange(has_tried_, true)) {
      TryAgain();
      return true;
    }
    const bool is_cut = std::count(idle_left_.begin(), idle_left_.end(), 0) > 0;
    if (is_cut && std::exchange(has_idled_, false)) {
      BeginPump();  // more of them may be all that it waits for
    } else {
      Pull(job);
      has_tried_ = false;
    }
    return true;
  }
  return false;
}

// --- What moves ---

bool PlanRun::Advance() {
  const bool was_blocked = frames_->is_blocked_by_lease();
  if (MustTryAgain()) TryAgain();
  bool progress = false;
  for (int link = 0; link < plan::kNumLinks; ++link)
    progress |= AdvanceLink(static_cast<plan::Transfer>(link));
  progress |= AdvanceFree();
  progress |= AdvanceEntry();
  progress |= frames_->Settle();
  while (const auto moved = frames_->follower().TakeMoved()) {
    PlanStats& stats = pages_.stats().plan;
    ++stats.steps;
    stats.nvme = {(*moved)[plan::Transfer::kRead], (*moved)[plan::Transfer::kWrite]};
    stats.pinned = {(*moved)[plan::Transfer::kCopyIn], (*moved)[plan::Transfer::kCopyOut]};
  }
  progress |= frames_->is_blocked_by_lease() && !was_blocked;
  return progress || PullIfNothingMoves();
}

// Whether the bytes of an operation that had nothing to do are below: a commit, or a copy's
// leaving, has brought them there in its stead.
bool PlanRun::HasMoved(const plan::Op& op) const {
  const Page& page = pages_[op.tile];
  return op.kind == plan::Transfer::kWrite
             ? page.stored
             : op.kind == plan::Transfer::kCopyOut && (page.stored || page.is_ready(Tier::kPinned));
}

bool PlanRun::AdvanceLink(plan::Transfer link) {
  PlanFollower& follower = frames_->follower();
  return AdvanceQueue(static_cast<size_t>(link), [&]() -> std::optional<PlanFollower::Count> {
    return follower.in_flight(link) < kMostInFlight ? follower.Take(link) : std::nullopt;
  });
}

bool PlanRun::AdvanceFree() {
  return AdvanceQueue(kFree, [&] { return frames_->follower().TakeFree(); });
}

// Whether it can only start with a frame that its tile has not.
bool PlanRun::NeedsFrame(const plan::Op& op) const {
  const bool takes = op.kind != plan::Transfer::kDrop && op.kind != plan::Transfer::kWrite;
  return takes && pages_[op.tile].copy(op.tier).state == Copy::State::kNone;
}

// Tries what `take` gives, one after the other, until there is none, too many wait, or as many as
// are left have moved nothing. Where one finds no room, none behind it takes a frame. What waits is
// tried again when something has ended that it may wait for.
bool PlanRun::AdvanceQueue(size_t queue,
                           absl::FunctionRef<std::optional<PlanFollower::Count>()> take) {
  bool progress = false;
  PlanFollower& follower = frames_->follower();
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
        End(*number);
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
bool PlanRun::MustTryAgain() const {
  if (endings_ != pages_.num_endings()) return true;
  const bool is_full = std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& waiting) {
    return waiting.ops.size() >= kMostWaiting;
  });
  return is_full && due_ != frames_->follower().num_due();
}

void PlanRun::TryAgain() {
  endings_ = pages_.num_endings();
  due_ = frames_->follower().num_due();
  frames_->ForgetBlocked();
  for (Waiting& waiting : waiting_) {
    for (const PlanFollower::Count op : waiting.ops) frames_->follower().PutBack(op);
    waiting.ops.clear();
    waiting.has_room = true;
  }
}

// In the first step, what the plan has in memory when a step begins is brought there in the order
// in which it is used. What is not there in time is pulled.
bool PlanRun::AdvanceEntry() {
  PlanFollower& follower = frames_->follower();
  const std::vector<plan::TraceEvent>& events = follower.step().trace.events;
  bool progress = false;
  int looked_at = 0;
  for (; follower.is_first_step() && next_entry_ < events.size(); ++next_entry_) {
    if (pages_.transfers_in_flight() >= kMostInFlight || ++looked_at > kMostLookedAt)
      return progress;
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

void PlanRun::TransferEnded(TileIndex tile, const std::optional<PlannedOp>& planned) {
  if (!frames_) return;
  if (planned && planned->run == number_ && planned->op) frames_->follower().End(*planned->op);
  frames_->TileIsDone(tile);
}

// An operation without a transfer is over.
void PlanRun::End(PlanFollower::Count op) {
  frames_->follower().End(op);
  frames_->TileIsDone(frames_->follower().OpAt(op).tile);
}

// Does what the operation says, as far as it still has to be done: a commit may have written a tile
// already, the caller may have discarded it, its bytes may never have been written, or it had to
// leave. What cannot be done then is not done, and the tile's next lease sees to it.
PlanRun::Step PlanRun::Try(const plan::Op& op, std::optional<PlanFollower::Count> number) {
  Page& page = pages_[op.tile];
  if (page.is_moving() || page.discard) return Step::kWaiting;
  // Another writer than the plan's: the tile has strayed.
  if (op.kind != plan::Transfer::kDrop && pages_.leases().IsWritten(op.tile)) return Step::kDone;
  // A copy that leaves is gone before the operation begins.
  if (page.is_leaving()) return Step::kWaiting;
  const bool in_pinned = page.is_ready(Tier::kPinned), on_device = page.is_ready(Tier::kDevice);
  const auto start = [&](Transfer transfer) {
    page.planned = PlannedOp{number_, number};
    const MoveReason reason = transfer == Transfer::kWrite     ? MoveReason::kWriteBehind
                              : transfer == Transfer::kCopyOut ? MoveReason::kMakeRoom
                                                               : MoveReason::kAhead;
    pages_.Start(op.tile, transfer, reason, /*job=*/nullptr);
    return Step::kStarted;
  };
  const auto take = [&](Tier tier) {
    switch (frames_->Take(op.tile, tier, op.offset)) {
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

PlanRun::Step PlanRun::TryDrop(const plan::Op& op) {
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
    frames_->Unsettle(op.tile);
  }
  return Step::kDone;
}

}  // namespace spillway::engine
