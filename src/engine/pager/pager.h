// SPDX-License-Identifier: Apache-2.0
//
// A state machine that decides which tile is where, and what moves next. Events go in as calls,
// actions come out of TakeActions. It has no thread, clock, file or memory, so that tests and a
// simulator drive it as the mover does. Its decisions follow from the order of the events alone.
//
// Its parts: page_table.h holds the state; room.h finds frames and chooses what to evict;
// arrivals.h brings in tiles for leases and prefetches; plan_run.h follows a plan; flush.h writes
// tiles for commits and write-behind. This file has the events, and the pump.
//
// A lease, an eviction, a flush and a prefetch are each a job. TakeActions advances every job as
// far as it can go, until none moves, and returns the actions. While a plan is followed, one run of
// the pump has limits (PumpLimits), so that no hold of the lock grows with the number of tiles.
//
#ifndef SPILLWAY_ENGINE_PAGER_PAGER_H_
#define SPILLWAY_ENGINE_PAGER_PAGER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "spillway/types.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/arrivals.h"
#include "src/engine/pager/flush.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/plan_run.h"
#include "src/engine/pager/room.h"
#include "src/engine/pager/transfers.h"
#include "src/engine/pager/use_queue.h"

namespace spillway::engine {

// Externally synchronised.
class Pager {
 public:
  explicit Pager(PagerOptions options) : pages_(std::move(options)) {}
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Adds a tile. `stored`: its bytes are on NVMe already, at `place`.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                    StorePlace place = {});
  // Requests the frame of a tile that rests on the device or in pinned memory; the ticket ends with
  // kGrant or kFail. REQUIRES: the tile is new, and is not leased before kGrant.
  void Reserve(Ticket ticket, TileIndex tile);

  // --- Events from callers ---
  // Requests a lease; the ticket ends with kGrant or kFail. With a stream, the lease may be granted
  // before its bytes have arrived, and while that stream still drains a writer's released lease.
  void Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream);
  // Withdraws a request that no caller waits for any more: it ends with kFail, Cancelled, unless it
  // has been granted. Transfers in flight for it go on; a commit starts no more writes.
  void Withdraw(Ticket ticket);
  // The holder has released its lease, but work on a stream still uses the bytes. EndLease follows.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  void EndLease(TileIndex tile, Tier tier, Access access, bool drained);
  // Ends a writer's lease in pinned memory that could not be given to its caller. The copy on NVMe,
  // which no write has replaced, becomes the tile's newest again.
  void GiveUp(TileIndex tile, Access access);
  void Declare(TileIndex tile, Tier tier, Access access) { uses_.Declare(tile, tier, access); }
  void ClearDeclared() { uses_.Clear(); }
  absl::Status Evict(TileIndex tile);
  // Discards the tile's bytes: the tile reads as zeros and every copy is void. If streams still use
  // the bytes, this takes effect when they have drained, and leases wait for it. FailedPrecondition
  // if a holder has not released its lease.
  absl::Status Discard(TileIndex tile);
  // Discards tiles [first, first + count) for good, as when a tensor is unregistered: no caller may
  // request one again. Declared uses are forgotten, and a plan is abandoned. It has ended when
  // is_forgotten() is true for all pages. FailedPrecondition, without effect, if one of the tiles
  // is leased or requested. kKept: none of them was leased, so what NVMe has is all they have.
  absl::Status Forget(TileIndex first, TileIndex count, Stored stored = Stored::kRemoved);
  // Writes every tile that belongs to a commit and is not stored on NVMe; ends with kGrant or
  // kFail.
  void Commit(Ticket ticket) { flush_.Begin(ticket); }
  // For replacing the bytes on NVMe from outside the pager (with those of another commit). Pause
  // stops everything that no caller requested: declared uses are forgotten, a plan is abandoned,
  // and no prefetch or write-behind begins. Once no transfer is in flight, call either Resume,
  // which changes nothing, or Reset: every copy in memory is void, a tile's bytes are on NVMe if
  // `is_stored` returns true and it was never written if not, and a transient tile was never
  // written either. REQUIRES for all three: no lease, and no request of a caller's.
  void Pause();
  // For the end of the engine: no prefetch, write-behind or operation of a plan is added any more.
  void Stop();
  void Resume() { arrivals_.SetPaused(false); }
  void Reset(const std::function<bool(TileIndex)>& is_stored);

  // The plan that is followed, if any.
  PlanRun& plan() { return plan_; }

  // --- Events from the mover ---
  void TransferDone(TileIndex tile, const absl::Status& status);
  // Runs the pump: advances all jobs as far as they can go, within PagerOptions::pump, and returns
  // the actions to take. Call it after events.
  std::vector<Action> TakeActions();

  // --- What is true now ---
  const PageTable& pages() const { return pages_; }
  int transfers_in_flight() const { return transfers_.in_flight(); }
  // Whether a lease is held, or a caller waits.
  bool in_use() const { return has_callers() || pages_.leases().num_draining() > 0; }
  // Whether a lease is held that its holder has not released, or a caller waits.
  bool has_callers() const {
    return pages_.leases().num_held() > pages_.leases().num_draining() || has_requests();
  }
  // Whether a caller waits for a lease of the tile.
  bool IsAwaited(TileIndex tile) const { return jobs_.IsAwaited(tile); }
  // Returns a failure that was not reported to any caller, once; ok if there is none.
  absl::Status TakeWriteError() { return pages_.failures().TakeUnreported(); }
  // The same, if bytes are lost. No commit may follow such a failure before a caller knows of it.
  absl::Status TakeLostError() { return pages_.failures().TakeLost(); }
  // Records that `failure` is reported to a caller now.
  void NoteReported(const absl::Status& failure) { pages_.failures().NoteReported(failure); }
  // Why the request for a lease has not been granted yet; nullopt if it has been.
  std::optional<Stall> WhyWaits(Ticket ticket) const;

 private:
  bool has_requests() const { return !jobs_.of(Job::Kind::kAcquire).empty() || flush_.is_active(); }
  // A commit goes before the plan, unless a lease is held or requested meanwhile.
  bool IsPlanPaused() const {
    return plan_.is_followed() && flush_.is_active() && pages_.leases().num_held() == 0 &&
           jobs_.of(Job::Kind::kAcquire).empty();
  }

  // The pump.
  bool AdvanceAll(Job::Kind kind);
  Outcome Advance(Job& job);
  void EndDiscard(TileIndex tile);

  PageTable pages_;
  Transfers transfers_{&pages_};
  Jobs jobs_;
  UseQueue uses_;
  Room room_{&pages_, &transfers_, &jobs_, &uses_};
  PlanRun plan_{&pages_, &transfers_, &jobs_, &room_};
  Arrivals arrivals_{&pages_, &transfers_, &jobs_, &uses_, &room_, &plan_};
  Flush flush_{&pages_, &transfers_, &jobs_, &room_};
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PAGER_H_
