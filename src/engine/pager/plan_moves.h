// SPDX-License-Identifier: Apache-2.0
//
// The transfers of the plan that is followed: each link starts the plan's operations in their
// order, as far as they may start. In the first period, the tiles that the plan has in memory when
// a step begins are brought in too. Which operations may start is left to plan_follower.h, their
// frames to plan_frames.h.

#ifndef SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_
#define SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_frames.h"
#include "src/engine/pager/transfers.h"

namespace spillway::engine {

class PlanMoves {
 public:
  // `run`: identifies this run of a plan in PlannedOp.
  PlanMoves(uint64_t run, PlanFrames* frames, PageTable* pages, Transfers* transfers)
      : run_(run), frames_(*frames), pages_(*pages), transfers_(*transfers) {}

  // Restores the budgets of one run of the pump.
  void BeginPump() {
    for (Queue& queue : queues_) queue.idle_left = pages_.options().pump.idle;
    entry_left_ = pages_.options().pump.entering;
  }
  // Starts the operations that may start. Returns whether one started, or ended without a transfer.
  bool Advance();
  // Puts back the operations that could not start, so that the next Advance tries them again.
  void TryAgain();
  // Whether Advance stopped because a queue has used up its PumpLimits::idle, and operations moved
  // nothing since this last returned true. If so, the next run continues with the rest.
  bool StoppedEarly();

 private:
  using Step = PlanFrames::Step;

  struct Queue {
    std::optional<plan::Transfer> link;  // none: the operations without a link
    int idle_left = 0;
    // Operations that could not start when they were tried.
    std::vector<PlanFollower::Count> waiting;
  };

  std::optional<PlanFollower::Count> Take(const Queue& queue);
  bool AdvanceQueue(Queue& queue);
  bool AdvanceEntry();
  bool MustTryAgain() const;
  bool HasMoved(const plan::Op& op) const;
  Step Try(const plan::Op& op, std::optional<PlanFollower::Count> number);
  Step TryDrop(const plan::Op& op);

  const uint64_t run_;
  PlanFrames& frames_;
  PageTable& pages_;
  Transfers& transfers_;
  std::array<Queue, plan::kNumLinks + 1> queues_ = {{{Transfer::kRead},
                                                     {Transfer::kWrite},
                                                     {Transfer::kCopyIn},
                                                     {Transfer::kCopyOut},
                                                     {std::nullopt}}};
  bool has_idled_ = false;  // operations moved nothing since StoppedEarly last returned true
  uint64_t endings_ = 0;    // PageTable::num_endings at the last TryAgain
  uint64_t due_ = 0;        // PlanFollower::num_due at the last TryAgain
  // The next event of the first period whose tile AdvanceEntry looks at, and how many more it looks
  // at in this run of the pump.
  uint32_t next_entry_ = 0;
  int entry_left_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_
