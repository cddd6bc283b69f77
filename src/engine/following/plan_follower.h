// SPDX-License-Identifier: Apache-2.0
//
// Tracks how far a plan has been followed: which of its operations may start, and which leases may
// wait for it. Only the order of each tile's own uses counts (plan_progress.h). So threads that
// lease different tiles may interleave in any way, and readers that overlap are counted, not told
// apart. The follower is pure; it moves nothing.
//
// A use is an acquire or a discard. A plan's step repeats: a period is one step of the plan.
// Operations of the next period start as soon as everything that they wait for is over.
//
// Room: an operation takes its planned frame once the operations that the plan names have dropped
// the copies that lay there.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "src/engine/following/plan_periods.h"
#include "src/engine/following/plan_progress.h"
#include "src/engine/following/ready_ops.h"
#include "src/engine/following/step_plan.h"
#include "src/plan/bounds.h"

namespace spillway::engine {

class PlanFollower {
 public:
  using TileIndex = plan::TileIndex;
  // The number of an operation, or of a use among its tile's uses. It counts from the first one in
  // the first period and does not start again in later periods.
  using Count = PlanProgress::Count;

  // Starts at the plan's begin. The cost grows with the plan.
  explicit PlanFollower(StepPlan step);
  PlanFollower(const PlanFollower&) = delete;
  PlanFollower& operator=(const PlanFollower&) = delete;
  // Returns to the plan's begin. The cost does not grow with the plan.
  void Restart();

  const StepPlan& step() const { return step_; }
  // The lower bounds of the step. The first call computes them, which takes up to half as long as
  // planning. Any thread may call this, also while another one follows the plan.
  const plan::SecondsBound& Bound() const;
  // How far each tile has come in the plan.
  const PlanProgress& tiles() const { return tiles_; }

  static constexpr int kMostPassed = 64;
  // A new run of the pump begins. Its calls of MayWait pass at most `most_passed` events together,
  // and so does each call of Ask and ReleaseAsked from now on. Before the first run, the limit is
  // kMostPassed.
  void BeginPump(int most_passed) { left_to_pass_ = most_passed_ = most_passed; }

  // --- What callers do ---
  // Records that a lease of the tile is requested, or that the tile is discarded. See
  // PlanProgress::Ask.
  std::optional<Count> Ask(const plan::TraceEvent& event);
  // Records that a use that was asked for has happened: its lease was granted, or the bytes were
  // discarded.
  void Happened(TileIndex tile);
  // Records that the holder released the lease. Released follows, at once or when the lease has
  // drained.
  void ReleaseAsked(TileIndex tile);
  void Released(TileIndex tile);
  // Whether this step has so many uses that the plan does not have that it is not the plan's step.
  bool IsAnotherStep() const;
  // Ends a step. Returns whether it was the plan's step; if so, the next one begins.
  bool EndStep();
  bool is_first_step() const { return step_number_ == 0; }
  // Whether something was asked for in this step.
  bool HasBegunStep() const {
    return extra_ > 0 || asked_ > step_number_ * tiles_.index().num_uses();
  }

  // --- Leases ---
  // Whether the use need only wait for transfers: the tile's next operation runs or may start, or
  // all events that the plan has before this use have been asked for.
  bool MayWait(TileIndex tile, Count use);
  // Records that the caller does not wait: operations of the tile before this use count as over.
  // REQUIRES: none of them runs.
  void Skip(TileIndex tile, Count use);
  // How many events away the tile's next use is; the largest uint64_t if the tile has no uses.
  uint64_t EventsUntilNextUse(TileIndex tile) const;

  // --- Operations ---
  // Takes the operation of least position that could start on a link. If the operation was skipped
  // meanwhile, tiles().MayStartNow(op) is false, and the caller drops it. Otherwise the caller must
  // Begin it, End it or PutBack it.
  std::optional<Count> Take(plan::Transfer link) { return ready_.Take(link); }
  // Takes an operation that no link carries. The caller's duties are the same.
  std::optional<Count> TakeFree() { return ready_.TakeUnordered(); }
  void PutBack(Count op) { ready_.Push(op); }
  // Grows by one whenever an operation becomes ready.
  uint64_t num_due() const { return due_; }
  const plan::Op& OpAt(Count op) const { return step_.OpAt(op); }
  // Records that the operation runs from now on.
  void Begin(Count op);
  // Records that the operation is over, whether it has begun or not.
  void End(Count op);
  // The number of operations in flight on a link.
  int in_flight(plan::Transfer link) const { return in_flight_[static_cast<size_t>(link)]; }
  // Whether, for some operation in flight, the plan drops its tile's copy in the tier right after.
  bool IsRoomComing(Tier tier) const;

  // --- What was moved ---
  void CountMoved(Count op, uint64_t bytes) {
    periods_.Moved(step_.PeriodOf(op), OpAt(op).kind, bytes);
  }
  // Counts bytes that were moved for a use that did not wait for the plan.
  void CountPulled(TileIndex tile, Count use, plan::Transfer link, uint64_t bytes) {
    periods_.Moved(tiles_.index().PeriodOf(tile, use), link, bytes);
  }
  // See PlanPeriods::Take.
  std::optional<plan::LinkBytes> TakeMoved() { return periods_.Take(step_number_); }

 private:
  // A step is not the plan's if the number of its uses that the plan does not have exceeds the
  // number of its uses that follow the plan by more than this.
  static constexpr uint64_t kFewExtra = 8;

  void Consider(TileIndex tile);
  void Started(Count op);
  void Over(Count op);
  void LookAhead();

  const StepPlan step_;
  PlanProgress tiles_;
  ReadyOps ready_;
  PlanPeriods periods_;
  uint64_t step_number_ = 0;    // steps that have ended
  uint64_t asked_ = 0;          // uses that followed the plan, in all steps
  uint64_t due_ = 0;            // operations that have become ready
  uint64_t extra_ = 0;          // uses of this step that the plan does not have
  Count all_asked_before_ = 0;  // LookAhead's position: all events before it have been asked for
  int most_passed_ = kMostPassed;
  int left_to_pass_ = most_passed_;  // events, until the next Ask, ReleaseAsked or BeginPump
  std::vector<Count> running_;       // operations in flight on links
  std::array<int, plan::kNumLinks> in_flight_ = {};
  mutable std::once_flag bound_once_;
  mutable std::optional<plan::SecondsBound> bound_;  // empty until Bound is called
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_FOLLOWER_H_
