// SPDX-License-Identifier: Apache-2.0
//
// Which tile is where, and what moves next: a state machine. Events go in as calls, actions come
// out of TakeActions; there is no thread, clock, file or memory in it, so that tests and a
// simulator drive it as the mover does. What it decides follows from the order of the events alone.
//
// Its parts: page_table.h has the state; room.h finds frames, and chooses what leaves; arrivals.h
// brings what leases and prefetches want; plan_run.h moves what a plan says; flush.h what a commit
// needs; here are the events, and the pump, which lets each job go forward as far as it can.
//
// Readers enter without a lock where a tile is at rest with its bytes (lease_table.h): LetIn opens
// its count, and whatever a reader must not meet closes it first. So the pager may be told of a
// lease after it was taken, never after its end.

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

  // A new tile; `stored`: its bytes are on NVMe already, at `place`.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                    StorePlace place = {});

  // --- Events from callers ---
  // Ends with kGrant or kFail. With a stream, the lease may be granted before its bytes have come,
  // and while a writer that was let go is still at work on that stream.
  void Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream);
  // Nobody waits for that request any more: it ends with kFail, Cancelled, unless it has been
  // granted. What moves for it goes on; of a commit, no write begins.
  void Withdraw(Ticket ticket);
  // The holder let go but work on a stream still uses the bytes; EndLease follows.
  void BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream);
  struct LeaseEnd {
    TileIndex tile = 0;
    Tier tier = Tier::kDevice;
  };
  LeaseEnd EndLease(TileIndex tile, Tier tier, Access access, bool drained);
  // The end of a writer's lease in pinned memory whose bytes were not those of the copy on NVMe:
  // that copy, which no write has replaced, counts again.
  LeaseEnd GiveUp(TileIndex tile, Access access);
  // To be called after a lease's end and what followed from it (TakeActions): where the bytes are
  // there to stay for now, readers may take the next lease by themselves.
  void LetIn(const LeaseEnd& ended);
  // A reader did, in the order in which they did. To be called before any other event that comes
  // later.
  void Shared(TileIndex tile, Tier tier);
  void Declare(TileIndex tile, Tier tier, Access access) { uses_.Declare(tile, tier, access); }
  void ClearDeclared() { uses_.Clear(); }
  absl::Status Evict(TileIndex tile);
  // The bytes are not wanted any more: the tile reads as zeros, every copy is void. If streams
  // still use the bytes, that is so when they let go, and leases wait for it. FailedPrecondition if
  // leased by a holder who has not let go.
  absl::Status Discard(TileIndex tile);
  // Discards tiles [first, first + count) for good, as of a tensor that is unregistered: nobody may
  // ask for one again. Declared uses are forgotten, and a plan is abandoned. It is over when all
  // pages say is_forgotten(). FailedPrecondition, and nothing happens, if one is leased or asked
  // for.
  absl::Status Forget(TileIndex first, TileIndex count);
  // Writes every tile that a commit holds and NVMe has not; ends with kGrant or kFail.
  void Commit(Ticket ticket) { flush_.Begin(ticket); }
  // The bytes are about to become others, behind this machine's back (another commit's). Pause ends
  // everything that nobody asked for now: declared uses are forgotten, and no prefetch or unasked
  // write begins. Once no transfer is in flight, either Resume, which changes nothing, or Reset:
  // every copy in memory is void, a tile's bytes are on NVMe if `is_stored` says so and it was
  // never written if not, and a transient tile was never written either. REQUIRES for all three: no
  // lease, and no request of a caller's. Pause returns false, and does nothing, if a reader has
  // just come.
  bool Pause();
  void Resume() { arrivals_.SetPaused(false); }
  void Reset(const std::function<bool(TileIndex)>& is_stored);

  // The plan that is followed.
  PlanRun& plan() { return plan_; }

  // --- Events from the mover ---
  void TransferDone(TileIndex tile, const absl::Status& status);
  // Goes as far as it can and hands out what there is to do. To be called after events.
  std::vector<Action> TakeActions();

  // --- What is true now ---
  const PageTable& pages() const { return pages_; }
  int transfers_in_flight() const { return transfers_.in_flight(); }
  LeaseTable& leases() { return pages_.leases().table(); }
  // A lease is held, or a caller waits.
  bool in_use() const { return has_callers() || pages_.leases().num_draining() > 0; }
  // The same, but for leases that wait for a stream only.
  bool has_callers() const {
    return pages_.leases().num_held() > pages_.leases().num_draining() || has_requests();
  }
  // A write failed and nobody was told: the failure, once.
  absl::Status TakeWriteError() { return pages_.failures().TakeUntold(); }
  // Why the request has not been granted yet; none: it has.
  std::optional<Stall> WhyWaits(Ticket ticket) const;

 private:
  bool has_requests() const { return !jobs_.of(Job::Kind::kAcquire).empty() || flush_.is_active(); }
  // A commit goes before a plan, unless someone leases meanwhile.
  bool IsPlanPaused() const {
    return plan_.is_followed() && flush_.is_active() && pages_.leases().num_held() == 0 &&
           jobs_.of(Job::Kind::kAcquire).empty();
  }

  // The pump.
  bool AdvanceAll(Job::Kind kind);
  Outcome Advance(Job& job);
  void EndDiscard(TileIndex tile);
  void DropLost(TileIndex tile);

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
