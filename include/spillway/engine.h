// SPDX-License-Identifier: Apache-2.0
//
// The engine: tensors larger than the memory they are used in. Register tensors, lease their tiles
// while computing, let the engine move them between device, pinned memory and NVMe, commit.
//
// Every call may be made from any thread at any time, except that no other call may run during the
// destructor. Commit, Restore and Unregister come one at a time, and who asks for a lease,
// declares, registers or ends a step meanwhile waits until they are over. Commit, Snapshot and
// Restore require that nobody holds a lease or waits for one, and that no tensor is being
// registered. A lease that was released on a stream is over for its holder: where only such are
// left, these calls, Unregister too, wait for the streams.
//
// A process that is forked from the one that opened an engine has neither its threads nor its
// memory: there each call fails with FailedPrecondition, and its destructor leaves all alone.
//
// Failure: everything that can fail returns absl::Status. Codes: InvalidArgument (a bad argument),
// NotFound (of Open: no such device or no driver; Unimplemented: not in this build), AlreadyExists,
// Aborted (the GPU is lost: only a new process helps, at the last commit), FailedPrecondition (a
// call out of order: commit with leases held), ResourceExhausted (a budget: the message names the
// tensor, the tier, what was asked and what would fit), DataLoss (a checksum did not match),
// Unavailable and Internal (the operating system refused: the errno, file and offset are named),
// Cancelled (this thread's interrupt: interrupt.h). A failed write is reported by the next Acquire,
// AcquireHost, EndStep and Commit, and nothing is committed after it until a retry of that write
// has succeeded.

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

// Which device computes. Host: ordinary memory with a budget of its own, for machines without a
// GPU.
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

// How bytes reach the store's files.
enum class IoKind : uint8_t { kAuto, kUring, kPosix };

// What Open does with folders that hold a store already, or none. A store that Open made and that
// got no commit is removed by the destructor: it holds nothing.
enum class OpenMode : uint8_t {
  kCreate,        // a store that exists is an error (FailedPrecondition): nothing is overwritten
  kOpenOrCreate,  // continue from the last commit; absent or never committed: start empty
  kScratch,       // like kCreate, and the destructor removes what the engine made
};

// When Open measures the devices of a store: the request size and the queue depths at which they
// are fastest, 6 s each at most, with up to 512 MiB of a file that has no name.
enum class Calibration : uint8_t {
  kKeep,    // never: what was measured before holds, or a default
  kIfNone,  // devices that were not measured yet; if one cannot be, Open announces that and goes on
  kNow,     // all, again; if one cannot be, Open fails
};

struct EngineOptions {
  std::vector<std::string>
      store;  // folders, made if absent; none: everything rests in pinned memory
  OpenMode mode = OpenMode::kCreate;
  uint64_t store_bytes = kUnlimited;  // bytes of extents over all folders
  Device device = Device::Host();
  uint64_t device_bytes = kUnlimited;  // the device arena
  uint64_t pinned_bytes = kUnlimited;  // the pinned arena
  // The largest transfer and the unit of checksums; a multiple of 4 KiB, at least 4 KiB. A tile
  // smaller than it is one page. Fixed for the life of a store. 0: 1 MiB for a new store, its own
  // for an old one.
  uint64_t page_bytes = 0;
  IoKind io = IoKind::kAuto;
  // Reads, and writes, in flight on a device that was not measured: 1 to 1024.
  int queue_depth = 32;
  Calibration calibration = Calibration::kKeep;
  // Plans steps that repeat: a step, which is what happens between two calls of EndStep, follows
  // the plan that moves the fewest bytes, ahead of its leases. A lease that a plan does not have is
  // served on demand. If false, all leases are: declared uses come ahead, and room is made when it
  // is needed. The numbers computed are the same.
  bool plan_steps = true;
  // Where roles rest, planned or not. A role on NVMe wants a store (InvalidArgument); roles
  // that do not fit where they are to rest fail Register (ResourceExhausted).
  Placement placement = {};
  // Records what happens, for TakeTimeline: the newest so many events, 40 bytes of memory
  // each, a few events a tile and step. 0: nothing is recorded. No number that is computed depends
  // on it.
  uint64_t timeline_events = 0;
  // Once true, Open ends a calibration soon, with Cancelled. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Called once for each thing the machine could not give (see EngineStats::fallbacks), on any
  // thread of the engine's: it must not call the engine. May be empty.
  std::function<void(std::string_view)> announce;
};

// Fills `out` with the tensor's bytes from `offset_bytes` on; called for pieces in ascending order.
using Reader = std::function<absl::Status(uint64_t offset_bytes, std::span<std::byte> out)>;

// One future use of a tile, for Prefetch.
struct Use {
  TileRef tile;
  Tier tier = Tier::kDevice;  // kDevice: Acquire; kPinned: AcquireHost
  Access access = Access::kRead;
  friend bool operator==(const Use&, const Use&) = default;
};

// A commit that is kept under a name.
struct SnapshotInfo {
  std::string label;
  uint64_t number = 0;  // of the commit; commits count from 1
  std::string time;     // when the commit was made: RFC 3339, UTC
};

class Engine;

// A hold on one tile in one tier: contiguous bytes that stay where they are until it ends.
// Move-only; ends at destruction or Release. A lease must end before its engine does.
class SPILLWAY_EXPORT Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Release(); }

  // In the device tier this is device memory: on a GPU, for kernels only.
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_bytes_ / sizeof(T)};
  }
  explicit operator bool() const { return engine_ != nullptr; }

  // Ends the hold. If it was acquired with a stream, the bytes stay until the work launched on that
  // so far has run.
  void Release();
  // Ends it with another stream than it was acquired with, or with none (null): at once. For work
  // on a GPU that reads pinned memory, among others.
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
  // Opens (or makes) the store, reserves the arenas and starts the mover.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(EngineOptions options);
  // Waits for transfers in flight. What was not committed is lost, as the contract says.
  virtual ~Engine() = default;

  // Makes a tensor known. A new tensor is filled by `reader` in pieces of at most a tile, or starts
  // as zeros without one. A tensor that the last commit holds is taken from there and `reader` is
  // not called; a different spec under its name is InvalidArgument. `reader` runs on the calling
  // thread and may call the engine, but must not register its own tensor again, nor wait for
  // another's reader. Nobody finds the tensor before it is filled; if the reader fails it is not
  // registered.
  virtual absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader = {}) = 0;
  // Forgets a tensor: its bytes are void, its name is free, and the next commit does not have it.
  // Until then the last commit has it, and so does every snapshot that had it. Its id is not used
  // again. All declared uses are forgotten, and the plan that is followed is abandoned. Until the
  // engine closes the tensor's tiles keep their entries in its tables, their frames where their
  // role is placed, and their share of what decides whether all tiles fit in memory.
  // FailedPrecondition if a tile of it is leased or asked for. NotFound: there is no such tensor.
  virtual absl::Status Unregister(TensorId id) = 0;
  // The same for a tensor by its name, be it registered or only in the last commit, whatever its
  // spec. NotFound: it is neither.
  virtual absl::Status ForgetName(std::string_view /*name*/) {
    return absl::UnimplementedError("this engine forgets no tensor by name");
  }
  virtual absl::StatusOr<TensorId> Find(std::string_view name) const = 0;
  // REQUIRES: CheckTile is ok with the id.
  virtual const TensorSpec& Spec(TensorId id) const = 0;
  // Ok if there is such a tile. InvalidArgument: no such id was given out, or the tensor has fewer
  // tiles; NotFound: the tensor was unregistered.
  virtual absl::Status CheckTile(TileRef /*tile*/) const { return absl::OkStatus(); }

  // Leases a tile in the device tier, waiting for its bytes and for room. With a stream (of this
  // engine's, else InvalidArgument) the stream, not the caller, waits for the bytes, and for a
  // writer whose lease ended on that stream. Fails
  // at once with ResourceExhausted, naming the leases in the way, if nothing unleased or in flight
  // can make room. Any number of readers, or one writer; a lease that conflicts waits for the
  // other's end, so a thread must not acquire what it holds.
  virtual absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream = nullptr) = 0;
  // The same in pinned memory, for work of the CPU's on bytes at rest (the optimizer's).
  virtual absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) = 0;

  // Declares uses to come, in order, after those declared before. The engine moves their bytes
  // ahead as far as budgets allow. A use that does not come, or one that was not declared, costs
  // time only.
  virtual absl::Status Prefetch(std::span<const Use> uses) = 0;
  // Forgets all declared uses that have not come.
  virtual void ClearPrefetch() = 0;
  // Starts moving a tile to the lowest tier there is, or to where its role rests, to make room now.
  // FailedPrecondition if leased.
  virtual absl::Status Evict(TileRef tile) = 0;
  // The bytes of a transient tensor's tile are wanted no longer: every copy is forgotten, nothing
  // is written, and the tile reads as zeros. If leases were released on streams that still use the
  // bytes, that is so when the streams let go, and a lease waits for it. InvalidArgument if it is
  // not transient, FailedPrecondition if leased.
  virtual absl::Status Discard(TileRef tile) = 0;

  // A step's end: reports failures of transfers that nobody has waited for. The plan of a step that
  // is new is made beside the run (see EngineOptions::plan_steps). The next steps are served on
  // demand until it is ready; the first EndStep after that takes it up, once work on streams has
  // let go of its leases, which it waits for.
  virtual absl::Status EndStep() = 0;
  // Returns when no plan is being made. Right after EndStep, it also takes up the plan for the step
  // that comes. So what steps move does not depend on how long planning takes.
  virtual absl::Status WaitForPlan() { return absl::OkStatus(); }

  // Makes the state of every tensor that is not transient durable, with `user_state`, atomically:
  // after any crash the store reopens at exactly this commit or the one before. FailedPrecondition
  // without a store or with leases held.
  virtual absl::Status Commit(std::string_view user_state) = 0;
  // The user state of the commit that the store was opened at or made since; none: never committed.
  virtual std::optional<std::string> UserState() const = 0;
  // Which commit that is, counted from 1 (a Restore is one); 0: never committed.
  virtual uint64_t CommitNumber() const { return 0; }
  // The store's name for good: 32 hexadecimal digits, drawn when it was made. Empty without one.
  virtual std::string StoreId() const { return {}; }

  // Keeps the last commit under a name until Drop, by reference: it copies nothing and costs the
  // same whatever the state's size; space is taken only as later commits differ. What was written
  // since that commit is no part of it. `label` has 1 to 128 bytes of [A-Za-z0-9._-], else
  // InvalidArgument; AlreadyExists; FailedPrecondition without a store, before the first commit or
  // with leases held.
  virtual absl::Status Snapshot(std::string_view label) = 0;
  // Those that there are, the oldest commit first.
  virtual absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() = 0;
  // Goes back: the snapshot's state becomes a new commit, durable on return, and the engine is as
  // if it had been opened there. Every tensor has the snapshot's bytes; one that the snapshot
  // lacks, and every transient one, reads as zeros. One that the snapshot lacks stays registered,
  // so the next commit has it, as zeros unless it is written before: no reader is called again.
  // What was written since the last commit is lost, declared uses are forgotten, and UserState is
  // the snapshot's. NotFound; FailedPrecondition without a store, with leases held, or if a tensor
  // that is registered is another in the snapshot. After an error nothing has changed.
  virtual absl::Status Restore(std::string_view label) = 0;
  // Forgets a snapshot and frees what nothing else needs. NotFound.
  virtual absl::Status Drop(std::string_view label) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  // A stream of somebody else's on the engine's device: `native` is a cudaStream_t, which must
  // outlive what is returned. InvalidArgument on the host, which has none.
  virtual absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* /*native*/) {
    return absl::UnimplementedError("this engine wraps no streams");
  }
  // FailedPrecondition in a process that was forked from the engine's.
  virtual absl::Status CheckProcess() const { return absl::OkStatus(); }
  virtual EngineStats Stats() const = 0;
  // What happened since Open or the last TakeTimeline; empty without
  // EngineOptions::timeline_events. Transfers and waits under way are in the next. May be called as
  // Stats may.
  virtual Timeline TakeTimeline() { return {}; }
  // The page size in force, bytes.
  virtual uint64_t page_bytes() const = 0;

 protected:
  friend class Lease;
  virtual void EndLease(const Lease& lease) = 0;
  // For implementations, a test's double among them: a lease on `bytes` that ends by this engine's
  // EndLease.
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
