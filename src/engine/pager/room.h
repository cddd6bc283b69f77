// SPDX-License-Identifier: Apache-2.0
//
// Finds frames for tiles, and evicts tiles. A tile that needs a frame takes a free run; if there is
// none, it claims the cheapest contiguous window of tiles without leases. Each of these is evicted
// (its copy is dropped if another tier has the bytes, and moved to another tier if not), and its
// frame goes to the claim. When a tile is to be brought in is left to arrivals.h and plan_run.h.
//
// A tile in the window costs its bytes times a sum: 1 (forget), 1.5 (copy out) or 3 (write), up to
// 1 if it was used lately, and 4 to 260 if a use is known to come. A tile that the plan drops next
// costs nothing. A search looks at 128 frames and free runs, and continues if it has found no
// window by then. If there is no window even after all transfers have ended, the lease fails and
// names what is in the way.
//
// Room is always taken in the order device, then pinned, then NVMe, and nothing in pinned memory
// ever waits for device room, so claims cannot wait for each other in a circle.

#ifndef SPILLWAY_ENGINE_PAGER_ROOM_H_
#define SPILLWAY_ENGINE_PAGER_ROOM_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_frames.h"
#include "src/engine/pager/transfers.h"
#include "src/engine/pager/use_queue.h"

namespace spillway::engine {

class Room {
 public:
  Room(PageTable* pages, Transfers* transfers, Jobs* jobs, const UseQueue* uses)
      : pages_(*pages), transfers_(*transfers), jobs_(*jobs), uses_(*uses) {}

  // `plan`: the frames of the plan that is followed; null if there is none.
  void SetPlan(PlanFrames* plan) { plan_ = plan; }

  // --- Coming ---
  enum class Answer : uint8_t { kReady, kWaiting, kImpossible };
  // Takes a frame in the tier for the job's tile, or claims room for it and waits. A reserved frame
  // is the lowest that can be emptied. Tiles that have
  // a declared use up to `position` are not evicted for it; zero: a caller needs the frame now, and
  // declared uses protect no tile. kImpossible: `why` names what is in the way and the fix.
  Answer EnsureFrame(Job& job, Tier tier, uint64_t position, absl::Status* why);
  // A reserved frame may have been freed: the next one may lie lower.
  void ReservedFrameGone() { reserved_until_ = {}; }
  // Whether EnsureFrame would find room.
  bool IsFor(TileIndex tile, Tier tier, uint64_t position) const;
  // Gives back the frames that a job holds and does not use while it waits for something else.
  void ReleaseHeld(const Job& job);
  // The job has ended: the frames that it holds or has claimed have no holder any more, and other
  // jobs may take them.
  void ForgetHolder(const Job& job);

  // --- Leaving ---
  // Starts the tile's eviction from the tier, and then down to the lowest tier.
  void StartEvict(TileIndex tile, Tier tier);
  // Starts the tile's eviction from the highest tier in which it has a ready copy, and then down to
  // the lowest tier. Does nothing if the tile is leased.
  void Sink(TileIndex tile);
  // Starts the move of a tile whose role has a placement to its resting place. Does nothing until
  // the tile's last lease has ended.
  void GoToRest(TileIndex tile);
  Outcome AdvanceEvict(Job& job);
  // Drops all claims. REQUIRES: no job.
  void Reset() { claims_.clear(); }

 private:
  struct Claim {
    ClaimWindow window;
    int leaving = 0;
    const Job* holder = nullptr;
  };
  struct Window {
    uint64_t offset = 0;
    double cost = 0;
    bool found = false;
    bool possible = false;  // some window can be had later, such as when transfers end
  };
  enum class Leave : uint8_t { kNow, kLater, kNever };

  std::optional<uint64_t> Allocate(TileIndex tile, Tier tier, bool* waits);
  Window FindWindow(Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindWindowFrom(uint64_t from, Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindLowestWindow(Tier tier, uint64_t size_bytes, uint64_t from) const;
  Leave CanLeave(const ArenaMap::Segment& segment, Tier tier, uint64_t position,
                 double* cost) const;
  void Prefetch(const ArenaMap::Segment& segment) const;
  double CostOf(const Page& page, const ArenaMap::Segment& segment, Tier tier,
                uint64_t next_use) const;
  void MakeClaim(Job& job, Tier tier, uint64_t offset, uint64_t size_bytes);
  void FinishClaim(ClaimKey key);
  void CancelClaim(ClaimKey key, const absl::Status& why);
  void DropFrame(TileIndex tile, Tier tier, std::optional<ClaimKey> claim);
  absl::Status NoRoom(TileIndex tile, Tier tier) const;

  PageTable& pages_;
  Transfers& transfers_;
  Jobs& jobs_;
  const UseQueue& uses_;
  PlanFrames* plan_ = nullptr;
  std::map<ClaimKey, Claim> claims_;
  // Ends of the reserved frame and of the claim that came last: where searches begin.
  std::array<uint64_t, 2> reserved_until_ = {}, claimed_until_ = {};
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ROOM_H_
