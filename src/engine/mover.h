// SPDX-License-Identifier: Apache-2.0
//
// What the engine's callers may request: leases, ends of steps, and the calls that need the engine
// or a tensor exclusively, which take turns. The mover passes these requests to Pager under the
// lock (pager_driver.h). It decides nothing itself.
//
// Commit, Restore and Unregister take turns (mover_turns.cc). During a turn, calls that request a
// lease, declare uses or end a step wait. A turn waits for no caller: if a caller holds a lease or
// waits for one (for Unregister: of its tensor), the call fails, because that caller may need
// another lease before it can go on. Commit and Restore also fail while a tensor is being
// registered: a commit would contain a part of it.

#ifndef SPILLWAY_ENGINE_MOVER_H_
#define SPILLWAY_ENGINE_MOVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/base/mutex.h"
#include "src/engine/pager/pager.h"
#include "src/engine/pager_driver.h"
#include "src/engine/rate_meter.h"
#include "src/engine/transfer_thread.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// What Acquire returns for a lease.
struct Grant {
  std::byte* data = nullptr;
  tiers::EventHandle arrival;  // if not null, the bytes are there after this event
};

// Thread-safe. The destructor waits for transfers: see PagerDriver::Stop.
class Mover final : public PagerDriver {
 public:
  // If `choose_retained` is null, no steps are planned and everything is served on demand.
  static absl::StatusOr<std::unique_ptr<Mover>> Create(MoverParts parts, PagerOptions options,
                                                       plan::ChooseRetained* choose_retained);
  ~Mover() override;

  // Scope in which a tensor is being registered. Commit, Snapshot and Restore fail meanwhile, so
  // that no commit holds a part of the tensor and no restore replaces its bytes. The constructor
  // waits until no call has a turn. If status() is not ok, it is WaitForTurn's error, and nothing
  // is blocked.
  class Filling {
   public:
    explicit Filling(Mover* mover);
    ~Filling();
    Filling(const Filling&) = delete;
    Filling& operator=(const Filling&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    Mover& mover_;
    absl::Status status_;
  };

  // See Pager::AddTile.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored, StorePlace place);

  // Takes the frame of a new tile that rests in memory; does nothing for any other.
  // ResourceExhausted: leases are in the way. Cancelled if interrupted.
  absl::Status Reserve(TileIndex tile);

  absl::StatusOr<Grant> Acquire(TileIndex tile, Tier tier, Access access, StreamId stream);
  // Ends a lease. If `stream` is not null, the lease lasts until the work that was launched on it
  // so far has run.
  void EndLease(TileIndex tile, Tier tier, Access access, const tiers::StreamHandle* stream);
  // Ends a writer's lease in pinned memory whose frame does not hold the tile's bytes. The tile has
  // its bytes on NVMe again. If `was_stored` is false, NVMe does not have them: the tile reads as
  // zeros.
  void GiveUp(TileIndex tile, Access access, bool was_stored = true);
  // See the functions of the same names in Pager.
  absl::Status Declare(std::span<const TileIndex> tiles, std::span<const Use> uses);
  void ClearDeclared();
  absl::Status Evict(TileIndex tile);
  absl::Status Discard(TileIndex tile);

  // Writes every tile that a commit holds to NVMe, then calls `write`, which makes the store
  // commit. The timeline records the commit, and the step's trace leaves its time out.
  // FailedPrecondition if leases are held or requested, or if a tensor is being registered.
  absl::Status Commit(const std::function<absl::Status(io::Store*)>& write);
  // Switches the whole engine to another state of the store: waits for the transfers in flight,
  // calls `change`, which switches the store, and drops every copy in memory. If `change` fails,
  // every tile keeps its bytes. FailedPrecondition as for Commit.
  absl::Status Restore(const std::function<absl::Status(io::Store*)>& change);
  // Forgets tiles [first, first + count) for good: waits for their transfers in flight, invalidates
  // every copy, and then calls `change`, which makes the store forget them. FailedPrecondition if
  // one of them is leased.
  absl::Status Forget(TileIndex first, TileIndex count,
                      const std::function<void(io::Store*)>& change);
  // FailedPrecondition as for Commit; the message names the leases that are held.
  absl::Status CheckNoLeases(std::string_view what);
  // Ends the step, and starts to follow the next step's plan if it is made by now. Returns the
  // failure of a write that was not reported yet; a failure is reported once.
  absl::Status EndStep();
  // Waits until no plan is being made. If no step has begun since EndStep, starts to follow the
  // plan of the step that is expected. Cancelled if interrupted.
  absl::Status WaitForPlan();

  // See TransferThread::ReadAgain.
  absl::Status ReadAgain(TileIndex tile, uint64_t page, uint64_t checksum, std::byte* frame);

  EngineStats Stats();

 private:
  // The engine's turn for one call: no other call has it. Until it ends, calls that request a
  // lease, or change what is declared or planned, wait. Transfers continue, and leases may end. If
  // status() is not ok, it is WaitForTurn's error, and the call has no turn.
  class Turn {
   public:
    explicit Turn(Mover* mover);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    Mover& mover_;
    absl::Status status_;
  };
  // After this many plans that were out of date when they were made, WaitForPlan waits no more.
  static constexpr int kMostStalePlans = 4;

  // `budgets`: the options of plans. If empty, no steps are planned.
  Mover(MoverParts parts, PagerOptions options, const std::optional<plan::PlanOptions>& budgets);

  absl::StatusOr<Grant> AcquireLocked(TileIndex tile, Tier tier, Access access, StreamId stream);
  Pager::LeaseEnd End(TileIndex tile, Tier tier, Access access, bool drained)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeUpPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Calls that need the engine exclusively.
  // Waits until no call has a turn. Cancelled if interrupted before that.
  absl::Status WaitForTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WaitToUse(TileIndex tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until no lease waits for a stream, or until a caller holds or requests a lease. Cancelled
  // if interrupted before that.
  absl::Status WaitForStreams(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckIdle(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Pauses the pager, so that no transfer begins, and waits until none is in flight.
  // FailedPrecondition if leases are held; the pager is not paused then.
  absl::Status Quiesce(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Why the last step could not be planned; empty if it could.
  std::string not_planned_ ABSL_GUARDED_BY(mu_);
  RateMeter rates_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_turn_ = false;  // written under the lock
  base::CondVar turn_over_;
  int fills_ ABSL_GUARDED_BY(mu_) = 0;  // tensors that are being registered
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_MOVER_H_
