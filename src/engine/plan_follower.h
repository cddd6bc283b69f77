// SPDX-License-Identifier: Apache-2.0
//
// How far a plan has been followed, tile by tile: which of a tile's uses have come, which of its
// operations may start. Only the order of each tile's own uses counts. So threads that lease
// different tiles may interleave in any way, and readers that overlap are counted, not told apart.
// The follower is pure; it moves nothing.
//
// A use is an acquire or a discard. A plan's step repeats: a period is one step of the plan, and
// operations of the next period start as soon as nothing that they wait for is left.
//
// Room: of a plan for one thread, an operation takes its frame once those that the plan names have
// dropped theirs. A plan for several threads leaves a reserve; there an operation takes any frame,
// in the order of the plan, as soon as its bytes fit beside all that the plan has from now until
// the operation's own position.

#ifndef SPILLWAY_ENGINE_PLAN_FOLLOWER_H_
#define SPILLWAY_ENGINE_PLAN_FOLLOWER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "src/engine/plan_index.h"
#include "src/engine/plan_room.h"
#include "src/engine/step_plan.h"
#include "src/plan/keeping.h"

namespace spillway::engine {

class PlanFollower {
 public:
  using TileIndex = plan::TileIndex;
  // An operation of a period, or a use of a tile: counted on from the first period's first.
  using Count = uint64_t;

  // At the plan's begin. What this costs grows with the plan; once `stop` is true it ends soon, and
  // the follower is of no use.
  explicit PlanFollower(StepPlan step, const std::atomic<bool>* stop = nullptr);
  // Back to the plan's begin; what this costs does not grow with the plan.
  void Restart();

  const StepPlan& step() const { return step_; }
  // A tile that the plan knows nothing of, of the next index.
  void AddTile();
  size_t num_tiles() const { return tiles_.size(); }

  // --- What callers do ---
  // The tile is asked for, or discarded: the number of this use among the tile's, if it is the one
  // that the plan has next in this step. If not, the tile has strayed: no use of it counts until
  // the plan is followed anew.
  std::optional<Count> Ask(const plan::TraceEvent& event);
  bool has_strayed(TileIndex tile) const { return Of(tile).strayed; }
  // Uses of this step that were the plan's, and those that were not.
  uint64_t asked_in_step() const { return asked_ - step_number_ * index_.use_event.size(); }
  uint64_t extra_in_step() const { return extra_; }
  bool is_first_step() const { return step_number_ == 0; }
  bool HasBeenAskedFor(TileIndex tile) const { return Of(tile).uses_asked > 0; }
  // A use that was asked for has happened: its lease was granted, or the bytes were discarded.
  void Happened(TileIndex tile);
  // The lease's holder let go; Released follows, at once or when the holder's stream lets go.
  void ReleaseAsked(TileIndex tile) { ++Of(tile).releases_asked; }
  void Released(TileIndex tile);
  // A step is over: whether it was the plan's. If so, the next one begins.
  bool EndStep();

  // --- Leases ---
  // Whether all that the plan does with the tile before this use is over.
  bool OpsBeforeAreOver(TileIndex tile, Count use) const {
    return Of(tile).ops_ended >= OpsBefore(tile, use);
  }
  // Whether the operation is the last that the use waits for.
  bool IsLastBefore(Count op, TileIndex tile, Count use) const;
  // Whether the use need only wait for transfers: the tile's next operation runs or may start, or
  // all that the plan has before this use has been asked for.
  bool MayWait(TileIndex tile, Count use);
  // The caller does not wait: operations of the tile before this use count as over. REQUIRES: none
  // of them runs.
  void Skip(TileIndex tile, Count use);
  // Whether the tile is next read in the tier and the plan does nothing with it before.
  bool IsReadNext(TileIndex tile, Tier tier) const;
  bool IsRunning(TileIndex tile) const { return Of(tile).running; }
  // A use was asked for that has not happened.
  bool IsWanted(TileIndex tile) const { return Of(tile).uses_asked > Of(tile).uses_happened; }
  // Whether the plan drops the tile's copy in the tier before the tile's next use.
  bool IsDroppedNext(TileIndex tile, Tier tier) const;
  // Whether an operation of the tile runs, or may start now.
  bool HasOpDue(TileIndex tile) const { return Of(tile).due; }

  // --- Frames ---
  // Whether any frame will do.
  bool takes_any_frame() const { return takes_any_frame_; }
  // Where the tile's copy lies by now, as the plan has it; none: the plan has no copy there.
  std::optional<uint64_t> PlannedAt(TileIndex tile, Tier tier) const {
    const uint64_t offset = Of(tile).planned_at[At(tier)];
    return offset == kNowhere ? std::nullopt : std::optional(offset);
  }
  // How many events away the tile's next use is; of a tile without uses, more than any.
  uint64_t EventsUntilNextUse(TileIndex tile) const;

  // --- Operations ---
  // The operation of least position that may start on a link. It is the caller's from here on: it
  // is begun, or put back.
  std::optional<Count> Take(plan::Transfer link) { return Take(static_cast<size_t>(link)); }
  // One that no link carries. Those that take no room have no order: what is dropped without a
  // write never waits for what is written first.
  std::optional<Count> TakeFree();
  void PutBack(Count op);
  const plan::Op& OpAt(Count op) const { return step_.plan.ops[op % num_ops_]; }
  // It runs from now on.
  void Begin(Count op);
  // It is over.
  void End(Count op);
  // Whether an operation that runs is the last before the plan drops the tile's copy in the tier.
  bool IsRoomComing(Tier tier) const;
  // Operations that run, on a link.
  int in_flight(plan::Transfer link) const { return in_flight_[static_cast<size_t>(link)]; }

  // What operations of the next period that was begun to its end have moved, once; none before
  // that.
  std::optional<plan::LinkBytes> TakeMoved();
  void CountMoved(Count op, uint64_t bytes) {
    PeriodAt(op / num_ops_).moved[OpAt(op).kind] += bytes;
  }
  // For a use that does not wait.
  void CountPulled(TileIndex tile, Count use, plan::Transfer link, uint64_t bytes) {
    PeriodAt(use / index_.NumUses(tile)).moved[link] += bytes;
  }

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

  struct TileProgress {
    std::array<uint64_t, 2> planned_at = {kNowhere, kNowhere};
    uint64_t ops_ended = 0;
    uint32_t uses_asked = 0, uses_happened = 0;
    uint32_t releases_asked = 0, releases_happened = 0;
    bool due = false;      // the next operation may start, or runs
    bool running = false;  // it runs
    bool strayed = false;
    uint32_t run = 0;  // of which this is true; in another one the tile is where the plan begins
  };
  // Operations that may start, in order. Those that may start when the plan begins are not copied.
  class Ready {
   public:
    void SetStart(std::vector<uint32_t> start) { start_ = std::move(start); }
    void Restart() {
      next_ = 0;
      since_ = {};
    }
    bool empty() const { return next_ == start_.size() && since_.empty(); }
    Count top() const { return IsAtStart() ? start_[next_] : since_.top(); }
    void push(Count op) { since_.push(op); }
    void pop() { IsAtStart() ? void(++next_) : since_.pop(); }

   private:
    bool IsAtStart() const {
      return next_ < start_.size() && (since_.empty() || start_[next_] < since_.top());
    }
    std::vector<uint32_t> start_;  // in order
    size_t next_ = 0;
    std::priority_queue<Count, std::vector<Count>, std::greater<>> since_;
  };
  struct Period {
    plan::LinkBytes moved;
    uint64_t begun = 0;  // operations that move something
  };

  void FindStart(const std::atomic<bool>* stop);
  // Of a tile that this run has not looked at, it is made now.
  TileProgress& Of(TileIndex tile) const {
    TileProgress& progress = tiles_[tile];
    if (progress.run != run_) BeginTile(tile);
    return progress;
  }
  void BeginTile(TileIndex tile) const;
  uint64_t OpsBefore(TileIndex tile, Count use) const;
  // The tile's next operation.
  Count NextOp(TileIndex tile) const;
  bool MayStart(Count op) const;
  bool HasEnded(uint32_t op, uint64_t period) const;
  void Consider(TileIndex tile);
  void Over(Count op);
  std::optional<Count> First(size_t queue);
  std::optional<Count> Take(size_t queue);
  bool IsTakenSoon(Count op);
  size_t QueueOf(const plan::Op& op) const;
  void LookAhead();
  Count PositionOf(Count op) const {
    return op / num_ops_ * num_positions_ + step_.plan.position[op % num_ops_];
  }
  Count PositionNow() const {
    return all_asked_before_ / num_events_ * num_positions_ +
           plan::BeforeEvent(static_cast<uint32_t>(all_asked_before_ % num_events_));
  }
  bool HasRoom(Count op) const;
  bool IsCurrent(Count op) const {
    const TileIndex tile = OpAt(op).tile;
    return Of(tile).due && !Of(tile).running && NextOp(tile) == op;
  }
  bool HasBeenAsked(Count event) const;
  Period& PeriodAt(uint64_t period);
  void Started(Count op);
  bool IsLastOf(Count op, Tier tier) const;

  const StepPlan step_;
  const uint64_t num_events_;
  const uint64_t num_ops_;
  const uint64_t num_positions_;
  const bool takes_any_frame_;
  PlanIndex index_;
  std::vector<plan::Place> seam_;   // by tile: what the plan begins with
  std::vector<bool> due_at_start_;  // by tile: its first operation may start at once
  uint32_t run_ = 1;                // since when the plan is followed
  mutable std::vector<TileProgress> tiles_;
  uint64_t step_number_ = 0;    // steps that have ended
  uint64_t asked_ = 0;          // uses, in all
  uint64_t extra_ = 0;          // of this step, those that the plan does not have
  Count all_asked_before_ = 0;  // the first event that nobody has asked for
  // Those that may start, by link, least first; some have been skipped since. The last is of those
  // that take room without a link.
  static constexpr size_t kNoLink = plan::kNumLinks;
  std::array<Ready, kNoLink + 1> ready_;
  std::vector<uint32_t> free_at_start_;
  size_t next_free_ = 0;  // of them
  std::deque<Count> free_;
  std::vector<Count> running_;  // on links
  std::array<int, plan::kNumLinks> in_flight_ = {};
  std::optional<PlanRoom> room_;  // with takes_any_frame()
  std::deque<Period> periods_;    // from the first that is not taken yet
  uint64_t taken_periods_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_FOLLOWER_H_
