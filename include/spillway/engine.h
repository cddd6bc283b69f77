// SPDX-License-Identifier: Apache-2.0
//
// The engine holds tensors that are larger than the memory in which they are used. A caller
// registers tensors, leases their tiles while it computes on them, and commits. The engine moves
// the tiles between device memory, pinned memory and NVMe.
//
// Every call may be made from any thread at any time, except that no other call may run during the
// destructor. Commit, Restore and Unregister run one at a time. While one of them runs, calls that
// request a lease, declare uses, register a tensor, evict or discard a tile, end a step, or make a
// snapshot wait until it is over. Commit, Snapshot and Restore require that no lease is held or
// waited for, and that no tensor is being registered. A lease that was released on a stream no
// longer counts as held: if only such leases are left, these calls, and Unregister, wait for the
// streams.
//
// A process that was forked from the one that opened an engine has neither the engine's threads nor
// its memory. In it, every call that returns a status fails with FailedPrecondition, and the
// destructor leaves everything as it is.
//
// Failure: everything that can fail returns absl::Status. The codes are:
//   InvalidArgument        a bad argument
//   NotFound               there is no such tensor or snapshot; from Open: there is no such device
//                          or no driver
//   Unimplemented          from Open: the device is not in this build, or io_uring does not work
//   AlreadyExists          the name is taken
//   Aborted                the GPU is lost, or a wait for it has failed; only a new process can
//                          go on, from the last commit
//   FailedPrecondition     a call out of order, such as a commit with leases held; a file may not
//                          be accessed (EACCES, EPERM, EROFS)
//   ResourceExhausted      a budget is too small: the message names the tensor, the tier, what was
//                          asked and what would fit. Or the system has no room on a disk, memory,
//                          threads or open files left: the message names the errno
//   DataLoss               a checksum did not match, or the store's files are damaged or missing,
//                          or do not belong together (io/FORMAT.md)
//   Unavailable, Internal  the operating system refused: the message names the errno, the file and
//                          the offset
//   Cancelled              this thread's interrupt ended the call (interrupt.h), or
//                          EngineOptions::stop ended Open
// A failed write is reported by the next Acquire, AcquireHost or EndStep. Commit tries it again,
// and fails if that fails. So nothing is committed after it until a retry of that write has
// succeeded. A transient tensor's bytes are part of no commit, and stay in memory: Commit does not
// try its writes again.

#ifndef SPILLWAY_ENGINE_H_
#define SPILLWAY_ENGINE_H_

#include <atomic>
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
#include "spillway/export.h"
#include "spillway/stats.h"
#include "spillway/stream.h"
#include "spillway/timeline.h"
#include "spillway/types.h"

namespace spillway {

// The device that computes. The host device is ordinary memory with a budget of its own, for
// machines without a GPU.
class Device {
 public:
  enum class Kind : uint8_t { kHost, kCuda };
  static constexpr Device Host() { return Device(Kind::kHost, 0); }
  static constexpr Device Cuda(int index) { return Device(Kind::kCuda, index); }
  constexpr Kind kind() const { return kind_; }
  constexpr int index() const { return index_; }

 private:
  constexpr Device(Kind kind, int index) : kind_(kind), index_(index) {}
  Kind kind_;
  int index_;
};

// How the store's files are read and written: with io_uring, or by threads with POSIX calls. kAuto
// uses io_uring if it works, else threads.
enum class IoKind : uint8_t { kAuto, kUring, kPosix };

// What Open does with a store that exists already, or with none. The destructor removes a store
// that Open created and that got no commit: it holds nothing.
enum class OpenMode : uint8_t {
  kCreate,        // an existing store is an error (FailedPrecondition): nothing is overwritten
  kOpenOrCreate,  // continue from the last commit, or start empty if there is none
  kScratch,       // like kCreate, and the destructor removes what the engine created
};

// When Open measures the storage devices of a store: the request size and the queue depths at which
// they are fastest. This takes some 6 s for each device, and uses up to 512 MiB in a temporary
// file. No device is measured if pinned_bytes or store_bytes is less than 16 MiB.
enum class Calibration : uint8_t {
  kKeep,    // never: use earlier measurements, or else defaults
  kIfNone,  // devices not measured yet; if measuring fails, Open announces it and goes on
  kNow,     // all devices, again; if measuring fails, Open fails
};

struct EngineOptions {
  // The store's folders, created if absent. If empty, there is no store, and pinned memory is the
  // lowest tier.
  std::vector<std::string> store;
  OpenMode mode = OpenMode::kCreate;
  uint64_t store_bytes = kUnlimited;  // budget of extents, over all folders
  Device device = Device::Host();
  // Budgets of device and pinned memory, at least 4096 (else InvalidArgument), and limited to what
  // the machine has. Device memory is taken whole by Open: without a budget, 15/16 of what is free
  // on a GPU. Pinned memory is taken as it is used.
  uint64_t device_bytes = kUnlimited;
  uint64_t pinned_bytes = kUnlimited;
  // The largest transfer and the unit of checksums; a multiple of 4 KiB, from 4 KiB to 1 GiB. A
  // tile that is smaller is one page. Fixed for the life of a store. 0: 1 MiB for a new store, the
  // store's own page size for an old one.
  uint64_t page_bytes = 0;
  IoKind io = IoKind::kAuto;
  // The most reads in flight, and the most writes, on a storage device that was not measured; 1 to
  // 1024.
  int queue_depth = 32;
  Calibration calibration = Calibration::kKeep;
  // Whether steps that repeat are planned. A step is what happens between two calls of EndStep. A
  // plan moves tiles ahead of the step's leases, and is made so that it moves as few bytes as
  // possible. A lease that is not in the plan is served on demand. If false, all leases are served
  // on demand: tiles of declared uses are moved ahead, and room is made when it is needed. The
  // computed numbers are the same in both cases.
  bool plan_steps = true;
  // Where the tiles of each role rest, in planned steps and others. A role on NVMe requires a store
  // (InvalidArgument). Register fails with ResourceExhausted if the tiles of a role do not fit in
  // the tier where they rest.
  Placement placement = {};
  // How many of the newest events are recorded for TakeTimeline. An event takes 40 bytes of memory;
  // a step has a few events for each tile. 0: nothing is recorded. The computed numbers do not
  // depend on it.
  uint64_t timeline_events = 0;
  // When it becomes true, Open soon stops a calibration and fails with Cancelled. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Called once for each thing that the machine could not provide, or that is wrong with the store
  // and does not end the call, such as a damaged calibration (see EngineStats::fallbacks). It may
  // run on any thread, the engine's included, and must not call the engine. May be empty.
  std::function<void(std::string_view)> announce;
};

// Fills `out` with the tensor's bytes that begin at `offset_bytes`. It is called for one piece
// after another, in ascending order.
using Reader = std::function<absl::Status(uint64_t offset_bytes, std::span<std::byte> out)>;

// One future use of a tile, for Prefetch.
struct Use {
  TileRef tile;
  Tier tier = Tier::kDevice;  // kDevice: by Acquire; kPinned: by AcquireHost
  Access access = Access::kRead;
  friend bool operator==(const Use&, const Use&) = default;
};

// A commit that is kept under a name.
struct SnapshotInfo {
  std::string label;
  uint64_t number = 0;  // number of the commit, counted from 1
  std::string time;     // when the commit was made: RFC 3339, UTC
  std::string user_state;
};

class Engine;

// A hold on one tile in one tier. The tile's bytes are contiguous and stay where they are until the
// lease ends. Move-only. A lease ends at Release or at its destruction, and must end before its
// engine is destroyed.
class SPILLWAY_EXPORT Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Release(); }

  // For a lease in the device tier this is device memory. On a GPU only kernels may access it.
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_bytes_ / sizeof(T)};
  }
  explicit operator bool() const { return engine_ != nullptr; }

  // Ends the lease. If it was acquired with a stream, the bytes stay in place until the work that
  // has been launched on that stream so far has run.
  void Release();
  // Ends the lease on `stream` instead of the stream that it was acquired with; null: at once. One
  // use is work on a GPU that reads pinned memory.
  void Release(Stream* stream) {
    stream_ = stream;
    Release();
  }

 private:
  friend class Engine;
  friend class EngineImpl;
  Engine* engine_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  TileRef tile_;
  Tier tier_ = Tier::kDevice;
  Access access_ = Access::kRead;
  Stream* stream_ = nullptr;
};

class SPILLWAY_EXPORT Engine {
 public:
  // Opens or creates the store, reserves device and pinned memory, and starts the engine's threads.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(EngineOptions options);
  // Waits for transfers in flight. Whatever was not committed is lost.
  virtual ~Engine() = default;

  // Registers a tensor. A new tensor is filled by `reader` in pieces of at most a tile; if `reader`
  // is empty, it starts as zeros. A tensor that is registered already, or that the last commit
  // holds, keeps its bytes and `reader` is not called; a different spec under its name is
  // InvalidArgument. `reader` runs on the calling thread and may call the engine, but must not
  // register its own tensor again or wait for another tensor's reader. Other calls do not find the
  // tensor before it is filled. If the reader fails, the tensor is not registered. The frames of
  // tiles that rest in memory (EngineOptions::placement) are taken now, and other tiles make room
  // for them; if leases that are held leave no room, the error is ResourceExhausted and names them.
  virtual absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader = {}) = 0;
  // Removes a tensor. Its bytes are void, its name is free, and its id is not used again. The next
  // commit does not hold the tensor. The last commit holds it until then, and snapshots that hold
  // it keep it. All declared uses are forgotten, and the plan that is followed is abandoned. Until
  // the engine closes, the tensor's tiles keep their entries in the engine's tables, and they count
  // when the engine decides whether all tiles fit in pinned memory. Their reserved frames (see
  // Placement) become free; frames that were reserved after them stay where they are, so the room
  // between may be too small for a larger tile. FailedPrecondition: one of its tiles is leased, or
  // a caller waits for a lease of it. InvalidArgument: no such id was given out. NotFound: the
  // tensor was unregistered already.
  virtual absl::Status Unregister(TensorId id) = 0;
  // Removes a tensor by its name, like Unregister, whatever its spec is. The tensor may be
  // registered or only in the last commit. NotFound: it is in neither. FailedPrecondition: it is
  // being registered, or as Unregister.
  virtual absl::Status ForgetName(std::string_view name) = 0;
  // Returns the id of a registered tensor. NotFound: there is none of this name, or it is being
  // registered.
  virtual absl::StatusOr<TensorId> Find(std::string_view name) const = 0;
  // REQUIRES: CheckTile returns ok for the id.
  virtual const TensorSpec& Spec(TensorId id) const = 0;
  // Returns ok if the tile exists. InvalidArgument: no such id was given out, or the tensor has
  // fewer tiles. NotFound: the tensor was unregistered.
  virtual absl::Status CheckTile(TileRef tile) const = 0;

  // Leases a tile in the device tier. Waits for the tile's bytes and for room. If a stream is
  // given, the stream instead of the caller waits for the copy to the device, and for a writer
  // whose lease was released on that stream. The stream must be this engine's (InvalidArgument).
  // Fails at once with ResourceExhausted, and names the leases in the way, if neither tiles without
  // a lease nor transfers in flight can make room. InvalidArgument and NotFound as CheckTile. A
  // tile has any number of readers or one writer. A conflicting lease waits until the other one
  // ends, so a thread must not acquire a tile that it holds. A writer that waits does not hold up
  // other readers, because readers of several tiles could then wait for each other: it waits as
  // long as readers' leases of the tile overlap.
  virtual absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream = nullptr) = 0;
  // Leases a tile in pinned memory, for work of the CPU, such as the optimizer's. Otherwise like
  // Acquire. If a lease with kDiscard fails because pinned memory could not be registered with the
  // device, the tile has the bytes that it had on NVMe if these were the newest, else it reads as
  // zeros.
  virtual absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) = 0;

  // Declares future uses, in order; they follow the uses that were declared before. The engine
  // moves their bytes ahead of the uses as far as the budgets allow. A declared use that does not
  // happen, or a use that was not declared, costs only time. InvalidArgument: a use on NVMe, or as
  // CheckTile, like NotFound.
  virtual absl::Status Prefetch(std::span<const Use> uses) = 0;
  // Forgets all declared uses that have not happened yet.
  virtual void ClearPrefetch() = 0;
  // Starts to move a tile to the lowest tier, or to the tier where its role rests, so that room is
  // made now. FailedPrecondition: the tile is leased, or its lease was released on a stream that
  // still uses the bytes.
  virtual absl::Status Evict(TileRef tile) = 0;
  // Discards the bytes of a transient tensor's tile: drops every copy without writing it, and the
  // tile reads as zeros. If streams on which leases were released still use the bytes, this takes
  // effect when they have finished with them, and a new lease waits for that. InvalidArgument: the
  // tensor is not transient. FailedPrecondition: the tile is leased.
  virtual absl::Status Discard(TileRef tile) = 0;

  // Ends a step. Returns the failure of a transfer that no caller has waited for. The plan of a new
  // step is made in the background (see EngineOptions::plan_steps). Steps are served on demand
  // until the plan is ready. The first EndStep after that starts to follow it. For this it waits
  // until the leases that were released on streams have ended; if another caller holds or requests
  // a lease, a later EndStep starts to follow the plan.
  virtual absl::Status EndStep() = 0;
  // Waits until no plan is being made, or until four were made that other threads had voided. Right
  // after EndStep, the next step's plan is followed then, however long it took to make.
  virtual absl::Status WaitForPlan() = 0;

  // Makes the state of every tensor that is not transient durable, together with `user_state`.
  // Atomic: after any crash the store reopens at exactly this commit or the one before.
  // FailedPrecondition: there is no store, or leases are held.
  virtual absl::Status Commit(std::string_view user_state) = 0;
  // The user state of the last commit: the one that the store was opened at, or one made since.
  // None: the store was never committed.
  virtual std::optional<std::string> UserState() const = 0;
  // The number of the last commit, counted from 1; a Restore is a commit. 0: never committed.
  virtual uint64_t CommitNumber() const = 0;
  // The store's permanent id: 32 hexadecimal digits, drawn at random when the store was created.
  // Empty: there is no store.
  virtual std::string StoreId() const = 0;

  // Keeps the last commit under a name until Drop. The snapshot refers to the commit's data:
  // nothing is copied, the cost does not depend on the size of the state, and space is taken only
  // as later commits differ. What was written since the last commit is not part of it. `label` has
  // 1 to 128 bytes of [A-Za-z0-9._-], else InvalidArgument. AlreadyExists: there is such a
  // snapshot. FailedPrecondition: there is no store, there is no commit yet, or leases are held.
  virtual absl::Status Snapshot(std::string_view label) = 0;
  // All snapshots, the oldest commit first.
  virtual absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() = 0;
  // Goes back to a snapshot. The snapshot's state becomes a new commit, which is durable on return,
  // and the engine is as if it had been opened at that commit. Every tensor has the snapshot's
  // bytes. A tensor that the snapshot lacks, and every transient tensor, reads as zeros. A tensor
  // that the snapshot lacks stays registered, so the next commit holds it: as zeros unless it is
  // written before, because no reader is called again. What was written since the last commit is
  // lost, declared uses are forgotten, and UserState is the snapshot's. NotFound: there is no such
  // snapshot. FailedPrecondition: there is no store, leases are held, or a registered tensor has
  // another spec in the snapshot. After an error nothing has changed, except that declared uses and
  // the plan may be forgotten.
  virtual absl::Status Restore(std::string_view label) = 0;
  // Removes a snapshot and frees the space that nothing else needs. NotFound: there is no such
  // snapshot.
  virtual absl::Status Drop(std::string_view label) = 0;

  // Makes a stream on the engine's device. ResourceExhausted on the host device: no thread can be
  // started for it.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  // Wraps a stream that the caller made on the engine's device. `native` is a cudaStream_t, which
  // must outlive the returned Stream. InvalidArgument on the host device, which has no such
  // streams, and for cudaStreamPerThread, which is a different stream in each thread.
  // No lease may be acquired or end on the stream while it is captured into a CUDA graph: the
  // engine could not learn when the lease's work has ended, and Commit would fail with Aborted.
  // Acquire checks this. For the legacy default stream it holds while any blocking stream of the
  // context is captured.
  virtual absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) = 0;
  // FailedPrecondition in a process that was forked from the one that opened the engine; else ok.
  virtual absl::Status CheckProcess() const = 0;
  // Returns the counters of everything since Open. It may be called at any time.
  virtual EngineStats Stats() const = 0;
  // Returns what happened since Open or the last TakeTimeline. Empty if
  // EngineOptions::timeline_events is 0. Transfers and waits that are under way are in the next
  // timeline. Like Stats, it may be called at any time.
  virtual Timeline TakeTimeline() = 0;
  // The page size in use, in bytes.
  virtual uint64_t page_bytes() const = 0;
  // The options that Open was given.
  virtual const EngineOptions& options() const = 0;

 protected:
  friend class Lease;
  virtual void EndLease(const Lease& lease) = 0;
  // For implementations, including test doubles: returns a lease on `bytes` that ends through
  // this engine's EndLease.
  Lease MakeLease(std::span<std::byte> bytes, TileRef tile, Tier tier, Access access);
};

inline Lease Engine::MakeLease(std::span<std::byte> bytes, TileRef tile, Tier tier, Access access) {
  Lease lease;
  lease.engine_ = this;
  lease.data_ = bytes.data();
  lease.size_bytes_ = bytes.size();
  lease.tile_ = tile;
  lease.tier_ = tier;
  lease.access_ = access;
  return lease;
}

inline Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  engine_ = std::exchange(other.engine_, nullptr);
  data_ = other.data_;
  size_bytes_ = other.size_bytes_;
  tile_ = other.tile_;
  tier_ = other.tier_;
  access_ = other.access_;
  stream_ = other.stream_;
  return *this;
}

inline void Lease::Release() {
  if (Engine* engine = std::exchange(engine_, nullptr)) engine->EndLease(*this);
}

}  // namespace spillway

#endif  // SPILLWAY_ENGINE_H_
