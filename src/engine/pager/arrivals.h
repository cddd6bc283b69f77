// SPDX-License-Identifier: Apache-2.0
//
// Brings tiles to the tier in which they are needed: for a lease, which is then granted, or ahead
// of a declared use. Frames and evictions are left to room.h, the followed plan to plan_run.h.

#ifndef SPILLWAY_ENGINE_PAGER_ARRIVALS_H_
#define SPILLWAY_ENGINE_PAGER_ARRIVALS_H_

#include "absl/status/status.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_run.h"
#include "src/engine/pager/room.h"
#include "src/engine/pager/transfers.h"
#include "src/engine/pager/use_queue.h"

namespace spillway::engine {

class Arrivals {
 public:
  Arrivals(PageTable* pages, Transfers* transfers, Jobs* jobs, UseQueue* uses, Room* room,
           PlanRun* plan)
      : pages_(*pages),
        transfers_(*transfers),
        jobs_(*jobs),
        uses_(*uses),
        room_(*room),
        plan_(*plan) {}

  // Each advances a job of one kind.
  Outcome AdvanceAcquire(Job& job);
  Outcome AdvancePrefetch(Job& job);
  // Ends the job. For a lease, the caller receives `status`; a prefetch is dropped silently.
  Outcome Fail(Job& job, absl::Status status);
  // Adds prefetch jobs for the next declared uses. Returns whether it added any.
  bool StartPrefetches();
  // While paused, no tile is brought in ahead of its use.
  void SetPaused(bool paused) { is_paused_ = paused; }
  bool is_paused() const { return is_paused_; }

 private:
  Outcome AdvancePlanned(Job& job);
  Outcome TakeRoomAhead(Job& job);
  Outcome Fill(Job& job);
  Outcome FailOrWait(Job& job, Room::Answer answer, const absl::Status& why);
  Outcome Reserve(Job& job);
  Outcome Grant(Job& job, bool after_copy);

  PageTable& pages_;
  Transfers& transfers_;
  Jobs& jobs_;
  UseQueue& uses_;
  Room& room_;
  PlanRun& plan_;
  bool is_paused_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ARRIVALS_H_
