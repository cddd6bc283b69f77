// SPDX-License-Identifier: Apache-2.0
//
// How far a plan has been followed: which of its operations may start, and which leases may wait
// for it. Only the order of each tile's own uses counts (plan_progress.h). So threads that lease
// different tiles may interleave in any way, and readers that overlap are counted, not told apart.
// The follower is pure; it moves nothing.
//
// A use is an acquire or a discard. A plan's step repeats: a period is one step of the plan, and
// operations of the next period start as soon as nothing that they wait for is left.
//
// Room: of a plan for one thread, an operation takes its frame once those that the plan names have
// dropped theirs. A plan for several threads leaves a reserve; there an operation takes any frame,
// in the order of the plan, as soon as its bytes fit beside all that the plan has from now until
// the operation's own position (plan_room.h).

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/engine/following/plan_periods.h"
#include "src/engine/following/plan_progress.h"
#include "src/engine/following/plan_room.h"
#include "src/engine/following/ready_ops.h"
#include "src/engine/following/step_plan.h"

namespace spillway::engine {

class PlanFollower {
 public:
  using TileIndex = plan::TileIndex;
  // An operation of a period, or a use of a tile: counted on from the first period's first.
  using Count = PlanProgress::Count;

  // At the plan's begin. What this costs grows with the plan; once `stop` is true it ends soon, and
  // the follower is of no use.
  explicit PlanFollower(StepPlan step, const std::atomic<bool>* stop = nullptr);
  PlanFollower(const PlanFollower&) = delete;
  PlanFollower& operator=(const PlanFollower&) = delete;
  // Back to the plan's begin; what this costs does not grow with the plan.
  void Restart();

  const StepPlan& step() const { return step_; }
  // How far each tile has come.
  const PlanProgress& tiles() const { return tiles_; }
  // Whether any frame will do for an operation.
  bool takes_any_frame() const { return takes_any_frame_; }
  // A tile that the plan knows nothing of, of the next index.
  void AddTile() { tiles_.AddTile(); }

  // --- What callers do ---
  // The tile is asked for, or discarded: see PlanProgress::Ask.
  std::optional<Count> Ask(const plan::TraceEvent& event);
  // A use that was asked for has happened: its lease was granted, or the bytes were discarded.
  void Happened(TileIndex tile);
  // The lease's holder let go; Released follows, at once or when the holder's stream lets go.
  void ReleaseAsked(TileIndex tile);
  void Released(TileIndex tile);
  // Whether this step has so many uses that the plan has not that it is another.
  bool IsAnotherStep() const;
  // A step is over: whether it was the plan's. If so, the next one begins.
  bool EndStep();
  bool is_first_step() const { return step_number_ == 0; }

  // --- Leases ---
  // Whether the use need only wait for transfers: the tile's next operation runs or may start, or
  // all that the plan has before this use has been asked for.
  bool MayWait(TileIndex tile, Count use);
  // The caller does not wait: operations of the tile before this use count as over. REQUIRES: none
  // of them runs.
  void Skip(TileIndex tile, Count use);
  // How many events away the tile's next use is; of a tile without uses, more than any.
  uint64_t EventsUntilNextUse(TileIndex tile) const;

  // --- Operations ---
  // The operation of least position that may start on a link. It is the caller's from here on: it
  // is begun, or put back.
  std::optional<Count> Take(plan::Transfer link) { return Take(static_cast<size_t>(link)); }
  // One that no link carries.
  std::optional<Count> TakeFree();
  void PutBack(Count op) { ready_.Push(op); }
  // Operations that have become ready, in all.
  uint64_t num_due() const { return due_; }
  const plan::Op& OpAt(Count op) const { return step_.plan.ops[op % step_.plan.ops.size()]; }
  // It runs from now on.
  void Begin(Count op);
  // It is over.
  void End(Count op);
  // Operations that run, on a link.
  int in_flight(plan::Transfer link) const { return in_flight_[static_cast<size_t>(link)]; }
  // Whether an operation that runs is the last before the plan drops the tile's copy in the tier.
  bool IsRoomComing(Tier tier) const;

  // --- What was moved ---
  void CountMoved(Count op, uint64_t bytes) {
    periods_.Moved(op / step_.plan.ops.size(), OpAt(op).kind, bytes);
  }
  // For a use that does not wait.
  void CountPulled(TileIndex tile, Count use, plan::Transfer link, uint64_t bytes) {
    periods_.Moved(tiles_.index().PeriodOf(tile, use), link, bytes);
  }
  // See PlanPeriods::Take.
  std::optional<plan::LinkBytes> TakeMoved() { return periods_.Take(step_number_); }

 private:
  // A step with more uses that the plan does not have than this, and than it has followed, is
  // another.
  static constexpr uint64_t kFewExtra = 8;
  // Events that are passed in one go.
  static constexpr int kMostPassed = 64;

  void Consider(TileIndex tile);
  void Started(Count op);
  void Over(Count op);
  std::optional<Count> Take(size_t queue);
  bool IsTakenSoon(Count op);
  void LookAhead();
  bool HasRoom(Count op) { return !room_ || room_->Has(op); }

  const StepPlan step_;
  const bool takes_any_frame_;
  PlanProgress tiles_;
  ReadyOps ready_;
  PlanPeriods periods_;
  std::optional<PlanRoom> room_;  // with takes_any_frame()
  uint64_t step_number_ = 0;      // steps that have ended
  uint64_t asked_ = 0;            // uses, in all
  uint64_t due_ = 0;              // operations that have become ready
  uint64_t extra_ = 0;            // of this step, those that the plan does not have
  Count all_asked_before_ = 0;    // the first event that nobody has asked for
  std::vector<Count> running_;    // on links
  std::array<int, plan::kNumLinks> in_flight_ = {};
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_
