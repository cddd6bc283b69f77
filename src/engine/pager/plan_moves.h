// SPDX-License-Identifier: Apache-2.0
//
// What moves for a plan that is followed: each link takes the plan's operations in their order, as
// far as they may start. In the first period the plan also brings what it has in memory when a step
// begins.

#ifndef SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_
#define SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_frames.h"
#include "src/engine/pager/transfers.h"

namespace spillway::engine {

class PlanMoves {
 public:
  // `run`: the number of the plan among those that were taken up, for PlannedOp.
  PlanMoves(uint64_t run, PlanFrames* frames, PageTable* pages, Transfers* transfers)
      : run_(run), frames_(*frames), pages_(*pages), transfers_(*transfers) {}

  // The pump runs anew.
  void BeginPump() { idle_left_.fill(kMostIdle); }
  // Starts what may start. Whether something did, or was over without.
  bool Advance();
  // What could not start is tried again by the next Advance.
  void TryAgain();
  // Whether Advance stopped where more operations may have nothing to move, and some had not since
  // the last call. Then BeginPump and Advance go on.
  bool StoppedEarly();

 private:
  enum class Step : uint8_t { kStarted, kDone, kWaiting, kNoRoom };
  // Operations that move nothing, or nothing any more, that one run of the pump does of each queue:
  // where a plan begins they may be as many as tiles, and whoever leases meanwhile would wait for
  // all of them.
  static constexpr int kMostIdle = 64;

  bool AdvanceQueue(size_t queue, absl::FunctionRef<std::optional<PlanFollower::Count>()> take);
  bool AdvanceEntry();
  bool MustTryAgain() const;
  bool NeedsFrame(const plan::Op& op) const;
  bool HasMoved(const plan::Op& op) const;
  Step Try(const plan::Op& op, std::optional<PlanFollower::Count> number);
  Step TryDrop(const plan::Op& op);

  const uint64_t run_;
  PlanFrames& frames_;
  PageTable& pages_;
  Transfers& transfers_;
  // By link; then those without one.
  static constexpr size_t kFree = plan::kNumLinks;
  std::array<int, kFree + 1> idle_left_ = {};
  bool has_idled_ = false;  // some were done since StoppedEarly was asked last
  // Operations that could not start when they were tried.
  struct Waiting {
    std::vector<PlanFollower::Count> ops;
    bool has_room = true;  // as far as those know that need a frame
  };
  std::array<Waiting, kFree + 1> waiting_;
  uint64_t endings_ = 0;  // PageTable::num_endings when they were tried
  uint64_t due_ = 0;      // PlanFollower::num_due then
  // The next event of the first period whose tile may have to be brought to where the plan begins.
  uint32_t next_entry_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_MOVES_H_
