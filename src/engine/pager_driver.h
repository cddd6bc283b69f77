// SPDX-License-Identifier: Apache-2.0
//
// The one lock around the pager. PagerDriver passes ends of transfers, and leases that were taken
// without the lock, to Pager, carries out the actions that Pager returns, and records the timeline.
// It decides nothing. Mover adds what callers may request.
//
// The thread that brings an event answers the requests that Pager fails, or grants without a copy
// to wait for. It posts the other actions as work for the transfer thread.

#ifndef SPILLWAY_ENGINE_PAGER_DRIVER_H_
#define SPILLWAY_ENGINE_PAGER_DRIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "src/base/mutex.h"
#include "src/engine/caller_waits.h"
#include "src/engine/pager/pager.h"
#include "src/engine/plan_service.h"
#include "src/engine/step_planner.h"
#include "src/engine/timeline_recorder.h"
#include "src/engine/transfer_thread.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// Thread-safe.
class PagerDriver : private TransferThread::Listener {
 public:
  PagerDriver(const PagerDriver&) = delete;
  PagerDriver& operator=(const PagerDriver&) = delete;

  TransferThread& transfers() { return transfers_; }
  // Takes the recorded events, without the tensors' names and the budgets. Empty if no timeline is
  // recorded.
  Timeline TakeTimeline();

 protected:
  // Holds the lock for a caller of Pager. The constructor first applies the log of leases that were
  // taken without the lock. The destructor releases the lock, and then wakes the transfer thread if
  // Dispatch has left that to it.
  class ABSL_SCOPED_LOCKABLE Entry {
   public:
    explicit Entry(PagerDriver* driver) ABSL_EXCLUSIVE_LOCK_FUNCTION(driver->mu_)
        : driver_(*driver), lock_(&driver->mu_) {
      driver->ApplySharedLeases();
    }
    ~Entry() ABSL_UNLOCK_FUNCTION() {
      const bool wakes = std::exchange(driver_.wakes_, false);
      lock_.reset();
      if (wakes) driver_.transfers_.Wake();
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    PagerDriver& driver_;
    std::optional<base::MutexLock> lock_;
  };

  // When Dispatch wakes the transfer thread. kAtExit: when Entry releases the lock, or when WaitFor
  // begins to wait. This keeps a system call from the lock. The caller must not wait for anything
  // before, and must be a caller of the engine, so that the engine is not destroyed meanwhile.
  enum class Wake : uint8_t { kNow, kAtExit };

  // `budgets`: the options of plans. If empty, no steps are planned.
  PagerDriver(MoverParts parts, PagerOptions options,
              const std::optional<plan::PlanOptions>& budgets);
  // REQUIRES: Stop has returned.
  ~PagerDriver() override = default;
  // Cancels the plan that is being made, waits until no transfer, posted work or lease that waits
  // for a stream is left, writes that begin meanwhile included, and stops the transfer thread. The
  // destructor waits for the thread that makes plans.
  void Stop();

  // Whether the times of leases are recorded: for the traces of steps, or for the timeline.
  bool records_times() const { return plans_ != nullptr || recorder_ != nullptr; }
  // Applies the leases that readers took without the lock to the pager, the trace and the timeline.
  void ApplySharedLeases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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

  const std::function<std::string(TileIndex)> describe_;
  const uint64_t timeline_events_;  // 0: no timeline is recorded

  base::Mutex mu_;
  // Null if no timeline is recorded.
  const std::unique_ptr<TimelineRecorder> recorder_ ABSL_PT_GUARDED_BY(mu_);
  Pager pager_ ABSL_GUARDED_BY(mu_);
  LeaseTable& leases_;      // pager_'s; readers take leases in it without the lock
  const TileTable& tiles_;  // pager_'s; entries of existing tiles are read without the lock
  // Null if no steps are planned. Its thread reads the tiles, so it is destroyed before pager_.
  const std::unique_ptr<PlanService> plans_;
  StepPlanner planner_ ABSL_GUARDED_BY(mu_);
  CallerWaits waits_ ABSL_GUARDED_BY(mu_);
  int drains_ ABSL_GUARDED_BY(mu_) = 0;  // leases that wait for a stream
  base::CondVar quiet_;            // signalled when IsQuiet() becomes true and when a drain ends
  base::CondVar transfers_ended_;  // signalled when transfers have ended

 private:
  void RecordState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void OnEnded(std::span<const TransferThread::TransferEnd> transfers) override;
  void OnLaunched(const Action& grant, absl::Status status, tiers::EventHandle arrival) override;
  void OnIdle() override;
  void OnBegin(const Action& transfer) override;
  void OnWorked(int64_t begin_ns, int64_t end_ns) override;

  Traffic recorded_nvme_ ABSL_GUARDED_BY(mu_), recorded_pinned_ ABSL_GUARDED_BY(mu_);
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);  // of one call of Dispatch
  bool wakes_ ABSL_GUARDED_BY(mu_) = false;      // Entry must wake the transfer thread
  // kRunAgain actions that were posted and not carried out.
  int runs_again_ ABSL_GUARDED_BY(mu_) = 0;

  TransferThread transfers_;  // last member: destroyed first
};

// Returns `status` with the tile's name in front of its message.
absl::Status WithTile(const std::string& tile, const absl::Status& status);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_DRIVER_H_
