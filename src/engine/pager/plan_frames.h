// SPDX-License-Identifier: Apache-2.0
//
// The frames of a plan that is followed. They are preferences: a copy that does not lie where the
// plan has it is served as well, and leaves when its last lease has ended or when the plan needs
// its frame. So a plan can be taken up from any state of the tiles.

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

namespace spillway::engine {

class PlanFrames {
 public:
  // The plan is followed from its begin. All tiles that are in memory now are unsettled.
  PlanFrames(std::shared_ptr<PlanFollower> plan, PageTable* pages, Jobs* jobs);

  PlanFollower& follower() { return *follower_; }
  const PlanFollower& follower() const { return *follower_; }

  // Where the plan has the copy by now: its frame, if it is free.
  std::optional<uint64_t> Allocate(TileIndex tile, Tier tier);
  // Whether that frame is being made free.
  bool IsComing(TileIndex tile, Tier tier);
  // Whether the copy lies where the plan has it.
  bool LiesAsPlanned(TileIndex tile, Tier tier) const;
  // A frame for an operation, at `offset` or, where any frame will do, elsewhere. kNotYet: what is
  // in its way leaves. kNoRoom: any frame would do, and there is none.
  enum class Taken : uint8_t { kYes, kNotYet, kNoRoom };
  Taken Take(TileIndex tile, Tier tier, uint64_t offset);

  // The tile's copies may not lie where the plan has them.
  void Unsettle(TileIndex tile) { unsettled_.push_back(tile); }
  // Copies that do not lie as planned leave, once nothing else is under way with them. Whether one
  // does now.
  bool Settle();
  // A transfer or an operation of the tile's is over.
  void TileIsDone(TileIndex tile) {
    if (busy_.erase(tile) > 0) Unsettle(tile);
  }
  // The tile found no room to leave to; it is tried again when a lease has ended.
  void CouldNotLeave(TileIndex tile) { stuck_.insert(tile); }
  void LeaseEnded(TileIndex tile) {
    stuck_.clear();
    Unsettle(tile);
  }
  // A frame of the plan's is leased to another tile.
  bool is_blocked_by_lease() const { return is_blocked_by_lease_; }
  // What waits is tried again.
  void ForgetBlocked() { is_blocked_by_lease_ = false; }

 private:
  // Tiles that leave at a time, and tiles of those that were in memory that are looked at in one
  // go: with all at once, whoever leases meanwhile would wait long. What is in the plan's way
  // leaves at once.
  static constexpr size_t kMostLeaving = 64;
  static constexpr TileIndex kAtOnce = 128;
  bool IsEnoughLeaving() const { return jobs_.of(Job::Kind::kEvict).size() >= kMostLeaving; }
  void SettleNext();
  bool MakeWay(Tier tier, uint64_t offset, uint64_t size_bytes);
  bool SettleCopy(TileIndex tile, Tier tier);

  PageTable& pages_;
  Jobs& jobs_;
  const std::shared_ptr<PlanFollower> follower_;
  TileIndex next_unsettled_ = 0;  // tiles from here on are unsettled
  std::deque<TileIndex> unsettled_;
  absl::flat_hash_set<TileIndex> busy_;  // unsettled, once what is under way with them is over
  absl::flat_hash_set<TileIndex> stuck_;
  bool is_blocked_by_lease_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PLAN_FRAMES_H_
