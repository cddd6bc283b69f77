// SPDX-License-Identifier: Apache-2.0
//
// The one lock around the pager. The mover passes what callers request to Pager: leases, ends of
// steps, and the calls that need the engine or a tensor exclusively, which take turns. It also
// passes on the ends of transfers, carries out the actions that Pager returns (mover_dispatch.cc),
// and records the timeline (mover_timeline.cc). It decides nothing itself.
//
// The thread that brings an event answers the requests that Pager fails, or grants without a copy
// to wait for. It posts the other actions as work for the transfer thread.
//
// Commit, Restore and Unregister take turns (mover_turns.cc). During a turn, calls that request a
// lease, declare uses or end a step wait. A turn waits for no caller: if a caller holds a lease or
// waits for one (for Unregister: of its tensor), the call fails, because that caller may need
// another lease before it can go on. Commit and Restore also fail while a tensor is being
// registered: a commit would contain a part of it.

#ifndef SPILLWAY_ENGINE_MOVER_H_
#define SPILLWAY_ENGINE_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "src/base/mutex.h"
#include "src/engine/caller_waits.h"
#include "src/engine/pager/pager.h"
#include "src/engine/plan_service.h"
#include "src/engine/rate_meter.h"
#include "src/engine/recorded_step.h"
#include "src/engine/step_planner.h"
#include "src/engine/timeline_recorder.h"
#include "src/engine/transfer_thread.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// What Acquire returns for a lease.
struct Grant {
  std::byte* data = nullptr;
  tiers::EventHandle arrival;  // if not null, the bytes are there after this event
};

// Thread-safe. The destructor cancels the plan that is being made, waits until no transfer, posted
// work or lease that waits for a stream is left, writes that begin meanwhile included, and stops
// the transfer thread and the thread that makes plans.
class Mover final : private TransferThread::Listener {
 public:
  // If `choose_retained` is null, no steps are planned and everything is served on demand.
  static absl::StatusOr<std::unique_ptr<Mover>> Create(MoverParts parts, PagerOptions options,
                                                       plan::ChooseRetained* choose_retained);
  ~Mover() override;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  TransferThread& transfers() { return transfers_; }

  // A scope that others must not overlap. The constructor waits until no call has a turn. If
  // status() is not ok, it is WaitForTurn's error, and the scope blocks nothing.
  class Turn {
   public:
    enum class Kind : uint8_t {
      // The engine's turn for one call: no other call has it. Until it ends, calls that request a
      // lease, or change what is declared or planned, wait. Transfers continue, and leases may end.
      kAlone,
      // A tensor is being registered. Commit, Snapshot and Restore fail meanwhile, so that no
      // commit holds a part of the tensor and no restore replaces its bytes.
      kFills,
    };
    Turn(Mover* mover, Kind kind);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    Mover& mover_;
    const Kind kind_;
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
  // every copy, and then calls `change`, which makes the store forget them if they are not kept
  // there. FailedPrecondition if one of them is leased.
  absl::Status Forget(TileIndex first, TileIndex count, Stored stored,
                      const std::function<void(io::Store*)>& change);
  // FailedPrecondition as for Commit; the message names the leases that are held.
  absl::Status CheckNoLeases(std::string_view what);
  // Ends the step, and starts to follow the next step's plan if it is made by now. Returns the
  // failure of a write that was not reported yet; a failure is reported once.
  absl::Status EndStep();
  // Waits until no plan is being made. If no step has begun since EndStep, starts to follow the
  // plan of the step that is expected. Cancelled if interrupted.
  absl::Status WaitForPlan();

  EngineStats Stats();
  // See engine::LastStep.
  absl::StatusOr<RecordedStep> LastStep(size_t most_events);
  // Takes the recorded events, without the tensors' names and the budgets. Empty if no timeline is
  // recorded.
  Timeline TakeTimeline();

 private:
  // Holds the lock for a caller of Pager. The destructor releases the lock, and then wakes the
  // transfer thread if Dispatch has left that to it.
  class ABSL_SCOPED_LOCKABLE Entry {
   public:
    explicit Entry(Mover* mover) ABSL_EXCLUSIVE_LOCK_FUNCTION(mover->mu_)
        : mover_(*mover), lock_(&mover->mu_) {}
    ~Entry() ABSL_UNLOCK_FUNCTION() {
      const bool wakes = std::exchange(mover_.wakes_, false);
      lock_.reset();
      if (wakes) mover_.transfers_.Wake();
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Mover& mover_;
    std::optional<base::MutexLock> lock_;
  };

  // When Dispatch wakes the transfer thread. kAtExit: when Entry releases the lock, or when WaitFor
  // begins to wait. This keeps a system call from the lock. The caller must not wait for anything
  // before, and must be a caller of the engine, so that the engine is not destroyed meanwhile.
  enum class Wake : uint8_t { kNow, kAtExit };

  // After this many plans that were out of date when they were made, WaitForPlan waits no more.
  static constexpr int kMostStalePlans = 4;

  // `budgets`: the options of plans. If empty, no steps are planned.
  Mover(MoverParts parts, PagerOptions options, const std::optional<plan::PlanOptions>& budgets);

  // Ends a writer's lease in pinned memory that could not be given to its caller. The tile has its
  // bytes on NVMe again. If `was_stored` is false, NVMe does not have them: the tile reads as
  // zeros.
  void GiveUp(TileIndex tile, Access access, bool was_stored);
  void End(TileIndex tile, Tier tier, Access access, bool drained)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeUpPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The lock, and the transfer thread's side.
  // Carries out the pager's actions. Call it after an event.
  void Dispatch(Wake wake = Wake::kNow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Dispatches, and waits until the pager has answered the request. Withdraws the request if the
  // caller is interrupted. `tile`: the tile of the lease that is requested; kNoTile for a flush.
  absl::Status WaitFor(CallerWaits::Request* request, TileIndex tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsQuiet() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return pager_.transfers_in_flight() == 0 && drains_ == 0 && runs_again_ == 0 &&
           !transfers_.has_work();
  }
  // Returns `status` with the tile's name in front of its message, if it is an error.
  absl::Status WithTile(TileIndex tile, const absl::Status& status) const;
  void RecordState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnded(std::span<const TransferThread::TransferEnd> transfers) override;
  void OnLaunched(const Action& grant, absl::Status status, tiers::EventHandle arrival) override;
  void OnIdle() override;
  void OnBegin(const Action& transfer) override;
  void OnWorked(int64_t begin_ns, int64_t end_ns) override;

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

  const std::function<std::string(TileIndex)> describe_;
  const Placement placement_;
  const uint64_t small_bytes_;  // as in PagerOptions
  const std::optional<plan::PlanOptions> budgets_;
  const uint64_t timeline_events_;  // 0: no timeline is recorded

  base::Mutex mu_;
  // Null if no timeline is recorded.
  const std::unique_ptr<TimelineRecorder> recorder_ ABSL_PT_GUARDED_BY(mu_);
  Pager pager_ ABSL_GUARDED_BY(mu_);
  const TileTable& tiles_;  // pager_'s; entries of existing tiles are read without the lock
  // Null if no steps are planned. Its thread reads the tiles, so it is destroyed before pager_.
  const std::unique_ptr<PlanService> plans_;
  StepPlanner planner_ ABSL_GUARDED_BY(mu_);
  CallerWaits waits_ ABSL_GUARDED_BY(mu_);
  int drains_ ABSL_GUARDED_BY(mu_) = 0;  // leases that wait for a stream
  base::CondVar quiet_;            // signalled when IsQuiet() becomes true and when a drain ends
  base::CondVar transfers_ended_;  // signalled when transfers have ended

  // Why the last step could not be planned; empty if it could.
  std::string not_planned_ ABSL_GUARDED_BY(mu_);
  RateMeter rates_ ABSL_GUARDED_BY(mu_);
  bool has_turn_ ABSL_GUARDED_BY(mu_) = false;
  base::CondVar turn_over_;
  int fills_ ABSL_GUARDED_BY(mu_) = 0;  // tensors that are being registered
  Traffic recorded_nvme_ ABSL_GUARDED_BY(mu_), recorded_pinned_ ABSL_GUARDED_BY(mu_);
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);  // of one call of Dispatch
  bool wakes_ ABSL_GUARDED_BY(mu_) = false;      // Entry must wake the transfer thread
  // kRunAgain actions that were posted and not carried out.
  int runs_again_ ABSL_GUARDED_BY(mu_) = 0;

  TransferThread transfers_;  // last member: destroyed first
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_MOVER_H_
