// SPDX-License-Identifier: Apache-2.0
//
// The mover: the one lock around the pager. It carries events in, from callers, streams and the
// transfer thread, and actions out. What to do is decided by Pager.
//
// Who brings an event takes what Pager grants at once, and leaves the rest as work for the transfer
// thread.

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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/base/mutex.h"
#include "src/engine/caller_waits.h"
#include "src/engine/pager/pager.h"
#include "src/engine/plan_service.h"
#include "src/engine/rate_meter.h"
#include "src/engine/step_planner.h"
#include "src/engine/timeline_recorder.h"
#include "src/engine/transfer_thread.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// A lease as the mover gives it.
struct Granted {
  std::byte* data = nullptr;
  tiers::EventHandle arrival;  // not null: the bytes are there once this has happened
};

// Thread-safe. The destructor waits for transfers in flight.
class Mover : private TransferThread::Listener {
 public:
  // `policy`: none to serve everything on demand.
  static absl::StatusOr<std::unique_ptr<Mover>> Create(MoverParts parts, PagerOptions options,
                                                       std::optional<plan::Policy> policy);
  ~Mover() override;

  TransferThread& transfers() { return transfers_; }

  // A tensor is being registered: no commit may have a part of it, nor may other bytes come under
  // it. Waits for a turn; not ok: WaitForTurn's error, and nothing is kept from anybody.
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

  // See Pager.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored, StorePlace place);

  absl::StatusOr<Granted> Acquire(TileIndex tile, Tier tier, Access access, StreamId stream);
  // With a stream, the lease lasts until what was launched on it so far has run.
  void EndLease(TileIndex tile, Tier tier, Access access, const tiers::StreamHandle* stream);
  // See Pager.
  void GiveUp(TileIndex tile, Access access);
  absl::Status Declare(std::span<const TileIndex> tiles, std::span<const Use> uses);
  void ClearDeclared();
  absl::Status Evict(TileIndex tile);
  absl::Status Discard(TileIndex tile);

  // Brings every tile that a commit holds to NVMe; then `write` makes the store commit. Timelines
  // have it, and traces leave its time out. FailedPrecondition with leases held.
  absl::Status Commit(const std::function<absl::Status(io::Store*)>& write);
  // Brings the whole engine to another state of the store: transfers in flight end, `change` makes
  // the store go there, and every byte in memory is forgotten. If `change` fails, nothing happened.
  // FailedPrecondition with leases held.
  absl::Status Restore(const std::function<absl::Status(io::Store*)>& change);
  // Forgets tiles [first, first + count) for good: their transfers in flight end, every copy is
  // void, and then `change` makes the store forget them. FailedPrecondition if one is leased.
  absl::Status Forget(TileIndex first, TileIndex count,
                      const std::function<void(io::Store*)>& change);
  // FailedPrecondition, naming them, with leases held.
  absl::Status CheckNoLeases(std::string_view what);
  // The failure of a write that nobody was told of, once; and the next step's plan is taken up, if
  // it is made by now.
  absl::Status EndStep();
  // Returns when no plan is being made. If no step has begun since EndStep, its plan is taken up.
  // Cancelled if interrupted.
  absl::Status WaitForPlan();

  // See TransferThread.
  absl::Status ReadAgain(TileIndex tile, uint64_t page, uint64_t checksum, std::byte* frame);

  EngineStats Stats();
  // Without the tensors' names and the budgets; empty without a timeline.
  Timeline TakeTimeline();

 private:
  // The engine's turn for one call: no other has it. Until it ends, whoever asks for a lease, or
  // changes what is declared or planned, waits. Transfers go on, and leases end. Not ok:
  // WaitForTurn's error, and the call has no turn.
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
  // The lock, for whoever goes on with Pager: it first hears of the leases that were taken
  // without the lock.
  class ABSL_SCOPED_LOCKABLE Entry {
   public:
    explicit Entry(Mover* mover) ABSL_EXCLUSIVE_LOCK_FUNCTION(mover->mu_) : lock_(&mover->mu_) {
      mover->HearOfShared();
    }
    ~Entry() ABSL_UNLOCK_FUNCTION() {}  // NOLINT(modernize-use-equals-default): annotated
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    base::MutexLock lock_;
  };
  // `budgets`: of plans; none: nothing is planned.
  Mover(MoverParts parts, PagerOptions options, const std::optional<plan::PlanOptions>& budgets);

  // Callers' side.
  absl::StatusOr<Granted> AcquireLocked(TileIndex tile, Tier tier, Access access, StreamId stream);
  Pager::LeaseEnd End(TileIndex tile, Tier tier, Access access, bool drained)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HearOfShared() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Dispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `tile`: whose lease is asked for; kNoTile: it is a flush.
  absl::Status WaitFor(CallerWaits::Request* request, TileIndex tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeUpPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Calls that want the engine for themselves.
  // Returns when no call has a turn. Cancelled: interrupted before.
  absl::Status WaitForTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns when no stream has a lease, or a caller holds one. Cancelled: interrupted before.
  absl::Status WaitForStreams(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckIdle(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsQuiet() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return pager_.transfers_in_flight() == 0 && drains_ == 0 && !transfers_.has_work();
  }
  // Lets no transfer begin and waits until none is in flight: the pager is paused then.
  // FailedPrecondition, and nothing is paused, with leases held.
  absl::Status Quiesce(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The transfer thread's side.
  void OnEnded(std::span<const TransferThread::Ended> transfers) override;
  void OnLaunched(const Action& grant, absl::Status status, tiers::EventHandle arrival) override;
  void OnIdle() override;
  void OnBegin(const Action& transfer) override;
  void OnWorked(int64_t begin_ns, int64_t end_ns) override;

  const std::function<std::string(TileIndex)> describe_;
  const bool tells_when_;               // leases are written down with their times
  std::unique_ptr<PlanService> plans_;  // null: nothing is planned

  base::Mutex mu_;
  // Null without a timeline.
  const std::unique_ptr<TimelineRecorder> recorder_ ABSL_PT_GUARDED_BY(mu_);
  Traffic recorded_nvme_ ABSL_GUARDED_BY(mu_), recorded_pinned_ ABSL_GUARDED_BY(mu_);
  Pager pager_ ABSL_GUARDED_BY(mu_);
  LeaseTable& leases_;      // pager_'s; readers enter it without the lock
  const TileTable& tiles_;  // pager_'s; of tiles that exist it is read without the lock
  StepPlanner planner_ ABSL_GUARDED_BY(mu_);
  std::string not_planned_ ABSL_GUARDED_BY(mu_);  // why the last step was not
  RateMeter rates_ ABSL_GUARDED_BY(mu_);
  CallerWaits waits_ ABSL_GUARDED_BY(mu_);
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);  // of one Dispatch
  int drains_ ABSL_GUARDED_BY(mu_) = 0;          // leases that wait for a stream
  // No transfer, no drain, no work; or a drain is over; or, in a turn, a transfer is.
  base::CondVar quiet_;
  std::atomic<bool> has_turn_ = false;  // written under the lock
  base::CondVar turn_over_;
  int fills_ ABSL_GUARDED_BY(mu_) = 0;  // tensors that are being registered

  TransferThread transfers_;  // ends first
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_MOVER_H_
