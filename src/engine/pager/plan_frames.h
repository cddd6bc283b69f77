// SPDX-License-Identifier: Apache-2.0
//
// The frames of the plan that is followed. They are preferences: a copy that does not lie where the
// plan has it can be leased as well, and leaves when its last lease has ended or when the plan
// needs its frame. So following can begin from any state of the tiles. The plan's transfers are
// left to plan_moves.h.

#ifndef SPILLWAY_ENGINE_PAGER_PLAN_FRAMES_H_
#define SPILLWAY_ENGINE_PAGER_PLAN_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/plan/tile_bits.h"

namespace spillway::engine {

class PlanFrames {
 public:
  // Restarts the plan. All tiles that are in memory now are unsettled: their copies may not lie
  // where the plan has them.
  PlanFrames(std::shared_ptr<PlanFollower> plan, PageTable* pages, Jobs* jobs);

  PlanFollower& follower() { return *follower_; }
  const PlanFollower& follower() const { return *follower_; }
  std::shared_ptr<const PlanFollower> plan() const { return follower_; }

  // A new run of the pump begins: restores the budgets of what Settle and the follower look at.
  void BeginPump() {
    left_to_settle_ = pages_.options().pump.settled;
    follower_->BeginPump(pages_.options().pump.passed);
  }
  // Allocates the frame in which the plan has the copy by now. Returns nullopt if the plan has none
  // or it is not free.
  std::optional<uint64_t> Allocate(TileIndex tile, Tier tier);
  // Whether that frame is being made free. Starts the evictions that this takes.
  bool IsComing(TileIndex tile, Tier tier);
  // Whether the copy lies where the plan has it.
  bool LiesAsPlanned(TileIndex tile, Tier tier) const;
  // How far an operation has come: its transfer has begun, it is over, or it must wait.
  enum class Step : uint8_t { kStarted, kDone, kWaiting };
  // Takes the frame at `offset` for an operation. kWaiting: it cannot be taken yet; copies in its
  // way are evicted if they can be. Never returns kStarted.
  Step Take(TileIndex tile, Tier tier, uint64_t offset);

  // Records that the tile's copies may not lie where the plan has them.
  void Unsettle(TileIndex tile) { unsettled_.push_back(tile); }
  // Evicts copies that do not lie as planned, once nothing else is in progress with their tile.
  // Returns whether it started an eviction.
  bool Settle();
  // A transfer or an operation of the tile has ended.
  void TileIsDone(TileIndex tile) {
    if (!busy_[tile]) return;
    busy_.Set(tile, false);
    Unsettle(tile);
  }
  // Records that the tile could not be evicted. It is not tried again before a lease has ended.
  void CouldNotLeave(TileIndex tile) { stuck_.insert(tile); }
  void LeaseEnded(TileIndex tile) {
    stuck_.clear();
    Unsettle(tile);
  }
  // Whether an operation lacks its frame because a lease of another tile holds it.
  bool lacks_frame() const { return lacks_frame_; }
  // Call it before the waiting operations are tried again.
  void ForgetBlocked() { lacks_frame_ = false; }

 private:
  // Settle starts no eviction while kMostLeaving are in progress: without a limit, a caller that
  // leases meanwhile would wait long. Copies in the way of an operation are evicted all the same.
  static constexpr size_t kMostLeaving = 64;
  bool IsEnoughLeaving() const { return jobs_.of(Job::Kind::kEvict).size() >= kMostLeaving; }
  std::optional<TileIndex> TakeUnsettled();
  bool MakeWay(Tier tier, uint64_t offset, uint64_t size_bytes);
  bool SettleCopy(TileIndex tile, Tier tier);

  PageTable& pages_;
  Jobs& jobs_;
  const std::shared_ptr<PlanFollower> follower_;
  int left_to_settle_ = 0;       // in this run of the pump
  TileIndex next_at_begin_ = 0;  // TakeUnsettled returns the tiles from here on, too
  std::deque<TileIndex> unsettled_;
  // Tiles that are unsettled once their transfer or operation has ended. There may be as many as
  // tiles, so this is no hash table, which would be built anew under the lock as it grows.
  plan::TileBits busy_;
  absl::flat_hash_set<TileIndex> stuck_;
  bool lacks_frame_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_FRAMES_H_
