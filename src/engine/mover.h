// SPDX-License-Identifier: Apache-2.0
//
// The mover: the one owner of the pager, the I/O engine, the store and the copy streams. What to do
// is decided by Pager; the mover carries events in and actions out.
//
// Two kinds of thread enter. Callers and stream threads bring events under the lock, take what
// Pager grants at once, and leave the rest as work. The mover's own thread does the work: it
// alone touches the store, the I/O engine and the pinned arena, and it sleeps in the I/O engine's
// Reap.

#ifndef SPILLWAY_ENGINE_MOVER_H_
#define SPILLWAY_ENGINE_MOVER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "spillway/engine.h"
#include "src/base/busy_meter.h"
#include "src/base/mutex.h"
#include "src/engine/overlap_meter.h"
#include "src/engine/pager.h"
#include "src/engine/plan_service.h"
#include "src/engine/rate_meter.h"
#include "src/engine/step_planner.h"
#include "src/engine/timeline_recorder.h"
#include "tiers/device_runtime.h"
#include "tiers/pinned_arena.h"

namespace spillway::engine {

// What the mover works with; it owns all of it. `io` and `store` are null together.
struct MoverParts {
  std::unique_ptr<tiers::DeviceRuntime> runtime;
  std::unique_ptr<io::IoEngine> io;
  std::unique_ptr<io::Store> store;
  std::unique_ptr<tiers::PinnedArena> pinned;
  uint64_t device_bytes = 0;
  uint64_t slab_bytes = 0;  // of the pinned arena
  uint64_t timeline_events = 0;
};

// The error, with the name of the option (a member of EngineOptions) that asked for too much.
absl::Status WithOption(const absl::Status& status, std::string_view option);

// A lease as the mover gives it.
struct Granted {
  std::byte* data = nullptr;
  tiers::EventHandle arrival;  // not null: the bytes are there once this has happened
};

// Thread-safe, but for what the engine's contract excludes. The destructor waits for transfers in
// flight.
class Mover {
 public:
  // `policy`: none to serve everything on demand.
  static absl::StatusOr<std::unique_ptr<Mover>> Create(MoverParts parts, PagerOptions options,
                                                       std::optional<plan::Policy> policy);
  ~Mover();

  tiers::DeviceRuntime& runtime() { return *parts_.runtime; }

  // See Pager.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored, StorePlace place);

  absl::StatusOr<Granted> Acquire(TileIndex tile, Tier tier, Access access, StreamId stream);
  // With a stream, the lease lasts until what was launched on it so far has run.
  void EndLease(TileIndex tile, Tier tier, Access access, const tiers::StreamHandle* stream);
  void Declare(std::span<const TileIndex> tiles, std::span<const Use> uses);
  void ClearDeclared();
  absl::Status Evict(TileIndex tile);
  absl::Status Discard(TileIndex tile);

  // Brings every tile that a commit holds to NVMe. FailedPrecondition with leases held.
  absl::Status Flush();
  // Brings the whole engine to another state of the store: transfers in flight end, `change` makes
  // the store go there, and every byte in memory is forgotten. If `change` fails, nothing happened.
  // FailedPrecondition with leases held; `what` names the caller's operation.
  absl::Status Restore(std::string_view what,
                       const std::function<absl::Status(io::Store*)>& change);
  // FailedPrecondition, naming them, with leases held.
  absl::Status CheckNoLeases(std::string_view what);
  // The failure of a write that nobody was told of, once; and the next step's plan is taken up, if
  // it is made by now.
  absl::Status EndStep();
  // Returns when no plan is being made. If no step has begun since EndStep, its plan is taken up.
  void WaitForPlan();

  // Runs `work` on the mover's thread, which owns the store, and waits for it.
  void RunWithStore(const std::function<void(io::Store*)>& work);

  EngineStats Stats();

  // A commit as the timeline shows it: Flush is its first part. Nothing without a timeline.
  void BeginCommit();
  void EndCommit();
  // Without the tensors' names and the budgets; empty without a timeline.
  Timeline TakeTimeline();

 private:
  // A caller waiting for its ticket.
  struct Waiter {
    bool done = false;
    bool leased = false;  // also with a status that is not ok: the lease is there and must end
    absl::Status status;
    Granted granted;
    base::CondVar wake;
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
  // An action for the mover's thread, with what it needs to know of the tile.
  struct Work {
    Action action;
    const Tile* tile = nullptr;
  };

  Mover(MoverParts parts, PagerOptions options, std::optional<plan::Policy> policy);

  // Callers' side.
  absl::StatusOr<Granted> AcquireLocked(TileIndex tile, Tier tier, Access access, StreamId stream);
  Pager::LeaseEnd End(TileIndex tile, Tier tier, Access access, bool drained)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HearOfShared() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Dispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  plan::StepRecorder* Recording() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return planner_ != nullptr ? planner_->Recording() : nullptr;
  }
  void NotifyIfQuiet() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete(Action action, tiers::EventHandle arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateMeter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckIdle(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsQuiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return pager_.pages().transfers_in_flight() == 0 && drains_ == 0 && work_.empty();
  }
  // `tile`: whose lease it is; kNoTile: it is a flush.
  absl::Status WaitFor(Ticket ticket, TileIndex tile, Waiter& waiter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Block(Ticket ticket, TileIndex tile, Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::byte* Arena(Tier tier) {
    return tier == Tier::kDevice ? device_arena_ : parts_.pinned->data();
  }
  absl::Status PrepareFrame(uint64_t offset, uint64_t size_bytes);
  absl::Status TakeUpPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  EngineStats StatsNow(StepPlanner::LastStep* last, plan::Rates* rates);
  void RecordState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MeterRates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTransfer(TileIndex tile, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The mover's thread.
  void Run();
  bool TakeWork(std::vector<Work>* work, std::vector<std::function<void()>>* closures);
  void Execute(const Work& work);
  absl::Status Copy(const Action& action, uint64_t size_bytes);
  absl::Status MarkArrival(tiers::EventHandle* arrival);
  void GrantAfterCopy(const Action& action);
  void Sleep(bool idle);
  void RecordWork(int64_t sleep_ns, int64_t cpu_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTransferDone(TileIndex tile, const absl::Status& status);
  absl::Status Describe(TileIndex tile, const absl::Status& status) const;

  // Constant after Create.
  MoverParts parts_;
  const std::function<std::string(TileIndex)> describe_;
  std::byte* device_arena_ = nullptr;
  tiers::StreamHandle copy_in_, copy_out_;
  std::unique_ptr<io::PageIo> pages_;  // the thread's; null without a store
  int64_t working_since_ns_ = 0;       // the thread's; with a timeline
  std::deque<std::atomic<bool>> slab_ready_;
  bool tells_when_ = false;             // leases are written down with their times
  std::unique_ptr<PlanService> plans_;  // null: nothing is planned

  base::Mutex mu_;
  // Null without a timeline.
  const std::unique_ptr<TimelineRecorder> recorder_ ABSL_PT_GUARDED_BY(mu_);
  Traffic recorded_nvme_ ABSL_GUARDED_BY(mu_), recorded_pinned_ ABSL_GUARDED_BY(mu_);
  Pager pager_ ABSL_GUARDED_BY(mu_);
  LeaseTable& leases_;      // pager_'s; readers enter it without the lock
  const TileTable& tiles_;  // pager_'s; of tiles that exist it is read without the lock
  std::unique_ptr<StepPlanner> planner_ ABSL_GUARDED_BY(mu_);   // null: nothing is planned
  std::string not_planned_ ABSL_GUARDED_BY(mu_);                // why the last step was not
  std::array<base::BusyMeter, 2> copies_ ABSL_GUARDED_BY(mu_);  // in, out
  LinkUse link_use_ ABSL_GUARDED_BY(mu_);  // of NVMe, as the thread last saw it
  RateMeter rates_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Ticket, Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
  Ticket next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> closures_ ABSL_GUARDED_BY(mu_);
  OverlapMeter meter_ ABSL_GUARDED_BY(mu_);
  uint64_t waits_ ABSL_GUARDED_BY(mu_) = 0;
  int drains_ ABSL_GUARDED_BY(mu_) = 0;  // leases that wait for a stream
  Occupancy store_room_ ABSL_GUARDED_BY(mu_);
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  base::CondVar work_ready_;  // where there is no I/O engine to sleep in
  base::CondVar quiet_;       // no transfer, no drain, no work; or the last drain is over

  std::thread thread_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_MOVER_H_
