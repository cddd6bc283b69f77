// SPDX-License-Identifier: Apache-2.0
//
// Follows a plan. Each link starts the plan's operations that may start, in the order of their
// positions (plan_moves.h), and a lease waits for the operations of its own tile. It never waits
// for another caller: if more than transfers stands between the lease and the operations that it
// needs, it is *pulled*, that is, served on demand, in room that the plan leaves for this.
// src/plan/MODEL.md has the proof.
//
// The plan's frames are preferences (plan_frames.h): a copy that lies elsewhere leaves when its
// lease ends. So following can begin from any state of the tiles.
//
// A use that the plan lacks is served beside it. A plan is abandoned, and the step goes on on
// demand, when a step was another or has many such uses, when another plan is expected to come
// next, when a transfer or a lease failed, when a new tile will rest in memory or makes
// pinned memory too small for all tiles, and before a Restore or an Unregister.

#ifndef SPILLWAY_ENGINE_PAGER_PLAN_RUN_H_
#define SPILLWAY_ENGINE_PAGER_PLAN_RUN_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_frames.h"
#include "src/engine/pager/plan_moves.h"
#include "src/engine/pager/room.h"
#include "src/engine/pager/transfers.h"
#include "src/plan/trace.h"

namespace spillway::engine {

class PlanRun {
 public:
  PlanRun(PageTable* pages, Transfers* transfers, Jobs* jobs, Room* room)
      : pages_(*pages), transfers_(*transfers), jobs_(*jobs), room_(*room) {}

  // Follows `plan` from its beginning, step after step, until a step differs from the plan's or
  // something fails. The step that begins now is expected to be the one that the plan was made for.
  // REQUIRES: a store, or room for all tiles in pinned memory; no lease, and no request of a
  // caller's.
  void Follow(std::shared_ptr<PlanFollower> plan);
  // Stops following the plan. Transfers in flight end as usual. `deviated`: the reason is that
  // something was not as planned.
  void Abandon(bool deviated);
  // A step has ended. Abandons the plan if the step was not the plan's. Does nothing if nothing has
  // happened in the step.
  void EndStep();
  bool is_followed() const { return frames_.has_value(); }
  // Identifies the plan that is followed, since it was last begun; 0 if none is.
  uint64_t run() const { return frames_ ? number_ : 0; }
  // Null if no plan is followed.
  const PlanFollower* followed() const { return frames_ ? &frames_->follower() : nullptr; }
  // The plan that the last step followed to its end, until the next EndStep; null if it followed
  // none.
  std::shared_ptr<const PlanFollower> last_followed() const { return last_followed_; }

  // --- What callers do ---
  // A lease is requested. Returns the number of this use among the tile's uses, or nullopt if the
  // plan does not have it.
  std::optional<PlanFollower::Count> Ask(const plan::TraceEvent& use);
  // The requested use has been granted.
  void Granted(TileIndex tile);
  void DrainBegan(TileIndex tile) {
    if (FollowsUsesOf(tile)) frames_->follower().ReleaseAsked(tile);
  }
  void Released(TileIndex tile, bool drained) {
    if (!FollowsUsesOf(tile)) return;
    if (!drained) frames_->follower().ReleaseAsked(tile);
    frames_->follower().Released(tile);
  }
  // The tile's copies leave if they do not lie as planned. REQUIRES: a plan is followed.
  void LeaseEnded(TileIndex tile) { frames_->LeaseEnded(tile); }
  // The tile has a frame that no job holds, perhaps not where the plan has one.
  void FrameIsIdle(TileIndex tile) {
    if (frames_) frames_->Unsettle(tile);
  }
  void DiscardAsked(TileIndex tile);
  void Discarded(TileIndex tile);

  // --- Leases that wait for the plan ---
  enum class Answer : uint8_t { kWaiting, kGrant, kGrantAfterCopy, kPulled };
  // REQUIRES: the job has a use of the plan that is followed, and was not pulled.
  Answer AdvanceAcquire(Job& job);
  // Counts the bytes that a pulled lease moves.
  void CountPulled(const Job& job, Transfer transfer);

  // --- What moves ---
  // A new run of the pump begins.
  void BeginPump() {
    if (moves_) moves_->BeginPump();
    if (frames_) frames_->BeginPump();
    has_tried_ = runs_again_ = false;
  }
  bool Advance();
  // `planned`: the operation of a plan that the transfer carried out, if it was one.
  void TransferEnded(TileIndex tile, const std::optional<PlannedOp>& planned);

 private:
  bool FollowsUsesOf(TileIndex tile) const {
    return frames_ && !frames_->follower().tiles().has_strayed(tile);
  }
  void CountMoved();
  void Pull(Job& job);
  bool PullIfNothingMoves();
  bool RunAgainIfCut();

  PageTable& pages_;
  Transfers& transfers_;
  Jobs& jobs_;
  Room& room_;
  uint64_t number_ = 0;  // plans followed so far; identifies the current one in PlannedOp
  std::optional<PlanFrames> frames_;  // nullopt if no plan is followed
  std::optional<PlanMoves> moves_;    // nullopt if no plan is followed
  bool has_ended_step_ = false;       // whether the step that ended last followed the current plan
  std::shared_ptr<const PlanFollower> last_followed_;
  plan::LinkBytes moved_;  // in the last whole period of the current plan
  // In this run of the pump, TryAgain was called since the last pull; the next run continues.
  bool has_tried_ = false, runs_again_ = false;
  // By tile, discards of the plan that were requested and wait for a stream or a transfer.
  absl::flat_hash_map<TileIndex, uint32_t> discards_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_RUN_H_
