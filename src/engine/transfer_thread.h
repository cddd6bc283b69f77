// SPDX-License-Identifier: Apache-2.0
//
// The mover's own thread. Only this thread uses the store, requests I/O, locks slabs of the pinned
// arena and launches copies. It sleeps in the I/O engine's Reap, or without a store until work is
// posted. Any thread may post work to it; it reports to a listener what has ended. It does not
// decide what moves.

#ifndef SPILLWAY_ENGINE_TRANSFER_THREAD_H_
#define SPILLWAY_ENGINE_TRANSFER_THREAD_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "spillway/stats.h"
#include "src/base/busy_meter.h"
#include "src/base/mutex.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/rate_meter.h"
#include "tiers/device_runtime.h"
#include "tiers/pinned_arena.h"

namespace spillway::engine {

// The parts that the mover works with. `io` and `store` are both null or both set.
struct MoverParts {
  std::unique_ptr<tiers::DeviceRuntime> runtime;
  std::unique_ptr<io::IoEngine> io;
  std::unique_ptr<io::Store> store;
  std::unique_ptr<tiers::PinnedArena> pinned;
  uint64_t device_bytes = 0;
  uint64_t slab_bytes = 0;  // of the pinned arena
  uint64_t timeline_events = 0;
};

// Returns `status` with the name of the option (a member of EngineOptions) that requested too much
// added to its message.
absl::Status WithOption(const absl::Status& status, std::string_view option);

// An action for the thread, with the tile that it is for.
struct Work {
  Action action;
  const Tile* tile = nullptr;
};

// Thread-safe. Owns the parts, which end with it.
class TransferThread {
 public:
  struct TransferEnd {
    TileIndex tile = 0;
    absl::Status status;
  };
  // Its functions are called without a lock, on the transfer thread or, when a copy has ended, on a
  // thread of the device runtime.
  class Listener {
   public:
    virtual ~Listener() = default;
    // `transfers` is empty for a kRunAgain.
    virtual void OnEnded(std::span<const TransferEnd> transfers) = 0;
    // A lease's copy was launched; `arrival` occurs when it ends. If `status` is not ok, the copy
    // was not launched or its end could not be marked.
    virtual void OnLaunched(const Action& grant, absl::Status status,
                            tiers::EventHandle arrival) = 0;
    // All posted work has been started; transfers may be in flight. Some work ends without any
    // other call (kForget).
    virtual void OnIdle() = 0;
    // Only if a timeline is recorded: the transfer begins; the thread worked.
    virtual void OnBegin(const Action& transfer) = 0;
    virtual void OnWorked(int64_t begin_ns, int64_t end_ns) = 0;
  };

  TransferThread(MoverParts parts, Listener* listener);
  // REQUIRES: no work is posted, and no transfer is in flight.
  ~TransferThread();
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  // Allocates the device's arena and streams, and starts the thread. ResourceExhausted: there is
  // not enough memory, or no thread can be started.
  absl::Status Start();
  // Stops the thread and waits until it has ended. The thread starts all posted work before it
  // ends.
  void Stop();

  tiers::DeviceRuntime& runtime() { return *parts_.runtime; }
  std::byte* arena(Tier tier) {
    return tier == Tier::kDevice ? device_arena_ : parts_.pinned->data();
  }
  bool has_store() const { return parts_.store != nullptr; }

  // Moves the work out of `work`. If it returns true, the caller must call Wake soon.
  [[nodiscard]] bool Post(std::vector<Work>* work);
  // Wakes the thread. This is a system call, so call it without a lock where leases are frequent.
  void Wake();
  // Whether the thread has not taken some of the posted work yet (RunWithStore's is not counted).
  bool has_work() const { return has_work_.load(std::memory_order_acquire); }
  // Runs `work` on the thread, which owns the store, after the work that was posted before. Returns
  // when it has run.
  void RunWithStore(const std::function<void(io::Store*)>& work);
  // Makes a frame of pinned memory usable. If no transfer has filled the frame, it may lie in a
  // slab that is not locked yet.
  absl::Status PrepareFrame(uint64_t offset, uint64_t size_bytes);

  // Waits for the work on a stream, because its end could not be marked.
  void WaitFor(tiers::StreamHandle stream);
  // Records that a wait for work on the device failed. The work may still be running and writing.
  void NoteFailedWait(const absl::Status& status);
  // Ok, or Aborted: the device is lost, or a wait has failed. Nothing may be committed any more.
  absl::Status CheckDevice();

  LinkUse link_use();
  Occupancy store_room();

 private:
  void Run();
  bool TakeWork(std::vector<Work>* work, std::vector<std::function<void()>>* closures);
  void Sleep(bool idle);
  std::vector<TransferEnd> Reap(bool idle);
  void Execute(const Work& work);
  absl::Status Copy(const Action& action, uint64_t size_bytes);
  absl::StatusOr<tiers::EventHandle> MarkArrival();

  // Constant after Start.
  MoverParts parts_;
  Listener& listener_;
  const bool has_timeline_;
  std::byte* device_arena_ = nullptr;
  std::array<tiers::StreamHandle, 2> copy_streams_;  // in, out

  std::deque<std::atomic<bool>> slab_ready_;
  std::unique_ptr<io::PageIo> pages_;        // used by the thread alone; null without a store
  std::vector<io::PageIo::Result> results_;  // used by the thread alone; not handled yet
  // Used by the thread alone: why the last copy of a tile to the device was not launched.
  absl::flat_hash_map<TileIndex, absl::Status> not_launched_;
  int64_t working_since_ns_ = 0;  // used by the thread alone, for the timeline

  base::Mutex mu_;
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_work_ = false;  // written under the lock
  std::vector<std::function<void()>> closures_ ABSL_GUARDED_BY(mu_);
  std::array<base::BusyMeter, 2> copies_ ABSL_GUARDED_BY(mu_);  // in, out
  LinkUse link_use_ ABSL_GUARDED_BY(mu_);                       // NVMe's part, as of the last Reap
  Occupancy store_room_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_wait_ ABSL_GUARDED_BY(mu_);  // the first; ok: none
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  base::CondVar work_ready_;  // used if there is no I/O engine to sleep in

  std::thread thread_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TRANSFER_THREAD_H_
