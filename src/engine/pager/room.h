// SPDX-License-Identifier: Apache-2.0
//
// How a tile gets its frame, and how tiles leave. A tile that needs a frame takes a free run; else
// it claims the cheapest contiguous window of tiles without leases. Each of these leaves (it is
// forgotten if a lower tier has its bytes, and moved there if not) and hands its room to the claim.
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

  // Of the plan that is followed; null: none is.
  void SetPlan(PlanFrames* plan) { plan_ = plan; }

  // --- Coming ---
  enum class Answer : uint8_t { kReady, kWaiting, kImpossible };
  // A frame in the tier for the job's tile. Tiles whose use comes before `position` do not leave
  // for it; zero: the caller's need goes first. Impossible: `why` names what is in the way and the
  // fix.
  Answer EnsureFrame(Job& job, Tier tier, uint64_t position, absl::Status* why);
  // The frame where the tile rests is taken before its first lease anywhere, so that its bytes
  // always have a way back; after the frame of a lease on the device, since room is taken from
  // above.
  Answer EnsureReservedFrame(Job& job, absl::Status* why);
  // Whether EnsureFrame would find room.
  bool IsFor(TileIndex tile, Tier tier, uint64_t position) const;
  // Gives back the frames that a job holds and does not use while it waits for something else.
  void ReleaseHeld(const Job& job);
  // The job is over: what it held, or was about to, is idle and may be taken.
  void ForgetHolder(const Job& job);

  // --- Leaving ---
  // Down from the tier, and on to the lowest.
  void StartEvict(TileIndex tile, Tier tier);
  // Likewise, from the highest tier in which it is; not what is leased.
  void Sink(TileIndex tile);
  // A tile whose role is placed somewhere goes there once its last lease has ended.
  void GoToRest(TileIndex tile);
  Outcome AdvanceEvict(Job& job);
  // No claim is left. REQUIRES: no job.
  void Reset() { claims_.clear(); }

 private:
  struct Claim {
    PageTable::Window window;
    int leaving = 0;
    const Job* holder = nullptr;
  };
  struct Window {
    uint64_t offset = 0;
    double cost = 0;
    bool found = false;
    bool possible = false;  // some window would do once transfers end
  };
  enum class Leave : uint8_t { kNow, kLater, kNever };

  std::optional<uint64_t> Allocate(TileIndex tile, Tier tier, bool* waits);
  Window FindWindow(Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindWindowFrom(uint64_t from, Tier tier, uint64_t size_bytes, uint64_t position) const;
  Window FindLowestWindow(Tier tier, uint64_t size_bytes);
  Leave CanLeave(const ArenaMap::Segment& segment, Tier tier, uint64_t position,
                 double* cost) const;
  void Prefetch(const ArenaMap::Segment& segment) const;
  double CostOf(const Page& page, const ArenaMap::Segment& segment, Tier tier,
                uint64_t next_use) const;
  bool MakeClaim(Job& job, Tier tier, uint64_t offset, uint64_t size_bytes);
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
  std::array<uint64_t, 2> reserved_until_ =
      {};  // from the bottom on, frames that stay, without a gap
  std::array<uint64_t, 2> claimed_until_ = {};  // where the last claim ends: the next search begins
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ROOM_H_
