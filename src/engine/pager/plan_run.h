// SPDX-License-Identifier: Apache-2.0
//
// Following a plan. Each link takes the plan's operations in the order of their positions, those
// that may start; a lease waits for those of its own tile. It never waits for another caller: where
// more than transfers is between it and what the plan does for it, it is *pulled*, that is, served
// on demand, into room that the plan leaves for this. MODEL.md in src/plan has the argument.
//
// The plan's frames are preferences (plan_frames.h), so a plan can be taken up from any state of
// the tiles.

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

  // The step that begins now is, as far as anyone knows, the one that `plan` is of. It is followed
  // from its begin, over and over, until a step ends that was another, or something fails.
  // REQUIRES: a store, or room for all tiles in pinned memory; no lease, and no request of a
  // caller's.
  void Follow(std::shared_ptr<PlanFollower> plan);
  // What is under way ends as usual. `deviated`: because something was not as planned.
  void Abandon(bool deviated);
  // A step is over: a plan that had another step is left.
  void EndStep();
  bool is_followed() const { return frames_.has_value(); }
  // Null: none is.
  const PlanFollower* followed() const { return frames_ ? &frames_->follower() : nullptr; }
  void AddTile() {
    if (frames_) frames_->follower().AddTile();
  }

  // --- What callers do ---
  // A lease is asked for: the number of this use among the tile's; none: the plan does not have it.
  std::optional<PlanFollower::Count> Ask(TileIndex tile, Tier tier, Access access) {
    if (!frames_) return std::nullopt;
    return AskPlan({.tile = tile, .tier = tier, .access = access});
  }
  // The use that was asked for has been granted.
  void Granted(TileIndex tile);
  // A reader took the lease without asking.
  void Shared(TileIndex tile, Tier tier) {
    if (frames_) SharedOfPlan(tile, tier);
  }
  void DrainBegan(TileIndex tile, Tier tier);
  void Released(TileIndex tile, bool drained) {
    if (!FollowsUsesOf(tile)) return;
    if (!drained) frames_->follower().ReleaseAsked(tile);
    frames_->follower().Released(tile);
  }
  // Its copies leave if they do not lie as planned.
  void LeaseEnded(TileIndex tile) { frames_->LeaseEnded(tile); }
  // The tile has a frame that no job holds, perhaps not where the plan has one.
  void FrameIsIdle(TileIndex tile) {
    if (frames_) frames_->Unsettle(tile);
  }
  void DiscardAsked(TileIndex tile);
  void Discarded(TileIndex tile);
  // Whether readers may enter by themselves: the tile is next read there, and nothing moves before.
  bool MayEnter(TileIndex tile, Tier tier) const {
    return !frames_ || frames_->follower().tiles().IsReadNext(tile, tier);
  }
  bool LiesAsPlanned(TileIndex tile, Tier tier) const {
    return frames_ && frames_->LiesAsPlanned(tile, tier);
  }

  // --- Leases that wait for the plan ---
  enum class Answer : uint8_t { kWaiting, kGrant, kGrantAfterCopy, kPulled };
  // REQUIRES: the job has a use of the plan that is followed, and was not pulled.
  Answer AdvanceAcquire(Job& job);
  // Bytes that a pulled lease has moved.
  void CountPulled(const Job& job, Transfer transfer);

  // --- What moves ---
  // The pump runs anew.
  void BeginPump() {
    if (moves_) moves_->BeginPump();
    has_tried_ = false;
  }
  bool Advance();
  // `planned`: what the transfer was of a plan.
  void TransferEnded(TileIndex tile, const std::optional<PlannedOp>& planned);

 private:
  std::optional<PlanFollower::Count> AskPlan(const plan::TraceEvent& use);
  void SharedOfPlan(TileIndex tile, Tier tier);
  bool FollowsUsesOf(TileIndex tile) const {
    return frames_ && !frames_->follower().tiles().has_strayed(tile);
  }
  void Pull(Job& job);
  bool PullIfNothingMoves();

  PageTable& pages_;
  Transfers& transfers_;
  Jobs& jobs_;
  Room& room_;
  uint64_t number_ = 0;  // of plans that were taken up: tells this one from those before
  std::optional<PlanFrames> frames_;  // none: no plan is followed
  std::optional<PlanMoves> moves_;    // likewise
  bool has_tried_ = false;            // again, in this pump and since the last pull
  // Discards that were asked for and wait for a stream or a transfer.
  absl::flat_hash_map<TileIndex, uint32_t> discards_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_RUN_H_
