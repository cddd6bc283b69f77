// SPDX-License-Identifier: Apache-2.0
//
// The mover's own thread: it alone touches the store, the I/O engine and the pinned arena, and
// launches copies. It sleeps in the I/O engine's Reap. What to do comes in from any thread; what
// has ended goes out to a listener.

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
#include "src/engine/tile_checksums.h"
#include "tiers/device_runtime.h"
#include "tiers/pinned_arena.h"

namespace spillway::engine {

// What the mover works with. `io` and `store` are null together.
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

// An action for the thread, with what it needs to know of the tile.
struct Work {
  Action action;
  const Tile* tile = nullptr;
};

// Thread-safe. It owns the parts; they end with it.
class TransferThread {
 public:
  struct Ended {
    TileIndex tile = 0;
    absl::Status status;
  };
  // Called without a lock, on the thread or, where a copy has ended, on a stream's.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnEnded(std::span<const Ended> transfers) = 0;
    // A lease's copy was launched: `arrival` happens at its end. Not ok: it was not marked.
    virtual void OnLaunched(const Action& grant, absl::Status status,
                            tiers::EventHandle arrival) = 0;
    // The last of the work has been begun; transfers may be in flight. Some work ends without
    // another word (kForget).
    virtual void OnIdle() = 0;
    // With a timeline: the transfer begins; the thread worked.
    virtual void OnBegin(const Action& transfer) = 0;
    virtual void OnWorked(int64_t begin_ns, int64_t end_ns) = 0;
  };

  TransferThread(MoverParts parts, Listener* listener);
  // REQUIRES: nothing is under way.
  ~TransferThread();
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  // Takes the device's arena and streams, and begins. ResourceExhausted: there is not enough.
  absl::Status Start();
  // Returns when the thread has ended, before which it begins all that was asked for.
  void Stop();

  tiers::DeviceRuntime& runtime() { return *parts_.runtime; }
  std::byte* arena(Tier tier) {
    return tier == Tier::kDevice ? device_arena_ : parts_.pinned->data();
  }
  bool has_store() const { return parts_.store != nullptr; }

  // Moves the work out of `work`.
  void Post(std::vector<Work>* work);
  // Whether some of it was not taken up yet.
  bool has_work() const { return has_work_.load(std::memory_order_acquire); }
  // Runs `work` on the thread, which owns the store, after what was posted before, and waits for
  // it.
  void RunWithStore(const std::function<void(io::Store*)>& work);
  // Reads one page of a tile into its place in the tile's frame, unless its bytes have `checksum`
  // by now. Returns when it is there, as it was written, or cannot be had.
  absl::Status ReadAgain(const Tile& tile, uint64_t page, uint64_t checksum, std::byte* frame);
  // A frame of pinned memory that no transfer has filled may lie in a slab that is not locked yet.
  absl::Status PrepareFrame(uint64_t offset, uint64_t size_bytes);

  TileChecksums& checksums() { return checksums_; }

  LinkUse link_use();
  Occupancy store_room();

 private:
  void Run();
  bool TakeWork(std::vector<Work>* work, std::vector<std::function<void()>>* closures);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sleep(bool idle);
  std::vector<Ended> Reap(bool idle);
  void Execute(const Work& work);
  absl::Status ComparePage(const Tile& tile, uint64_t page, uint64_t checksum, std::byte* frame);
  absl::Status Compare(TileIndex index, const Tile& tile, std::byte* frame);
  absl::Status Copy(const Action& action, uint64_t size_bytes);
  absl::StatusOr<tiers::EventHandle> MarkArrival();

  // Constant after Start.
  MoverParts parts_;
  Listener& listener_;
  const bool has_timeline_;
  std::byte* device_arena_ = nullptr;
  tiers::StreamHandle copy_in_, copy_out_;

  std::deque<std::atomic<bool>> slab_ready_;
  std::unique_ptr<io::PageIo> pages_;        // the thread's; null without a store
  std::vector<io::PageIo::Result> results_;  // the thread's: reaped, not looked at
  // The thread's: why the last copy of a tile to the device was not launched.
  absl::flat_hash_map<TileIndex, absl::Status> not_launched_;
  TileChecksums checksums_;
  int64_t working_since_ns_ = 0;  // the thread's; with a timeline

  base::Mutex mu_;
  std::vector<Work> work_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_work_ = false;  // written under the lock
  std::vector<std::function<void()>> closures_ ABSL_GUARDED_BY(mu_);
  std::array<base::BusyMeter, 2> copies_ ABSL_GUARDED_BY(mu_);  // in, out
  LinkUse link_use_ ABSL_GUARDED_BY(mu_);  // of NVMe, as the thread last saw it
  Occupancy store_room_ ABSL_GUARDED_BY(mu_);
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  base::CondVar work_ready_;  // where there is no I/O engine to sleep in

  std::thread thread_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TRANSFER_THREAD_H_
