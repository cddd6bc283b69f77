// SPDX-License-Identifier: Apache-2.0
//
// An IoEngine whose disk misbehaves on request: for tests of everything above the seam, and of how
// the engines resume short transfers below it.

#ifndef SPILLWAY_IO_FAULTY_IO_ENGINE_H_
#define SPILLWAY_IO_FAULTY_IO_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/deadline.h"
#include "io/io_engine.h"
#include "io/io_engine_options.h"
#include "io/unsynced_writes.h"
#include "src/base/mutex.h"

namespace spillway::io {

// What befalls some requests.
struct Fault {
  enum class Kind : uint8_t {
    kEio,       // fails with EIO; nothing is moved
    kEnospc,    // fails with ENOSPC; nothing is moved
    kBitFlip,   // succeeds, with one bit changed: of a read in the buffer, of a write on the disk
    kDelay,     // succeeds, and its completion comes `delay` late
    kShort,     // the kernel's first answer is cut to a random part: resumed below the seam
    kAgain,     // the kernel's first three answers are EAGAIN: tried again below the seam
    kTorn,      // writes: fails with EIO, and part of its sectors are written
    kLost,      // writes: succeeds, and nothing is written
    kDeadRing,  // this and all later requests fail with the ring's error; Clear does not help
  };
  Kind kind = Kind::kEio;
  IoOp op = IoOp::kRead;
  uint64_t skip = 0;   // requests of that op, submitted from now on, that it spares first
  uint64_t count = 1;  // requests of that op that it then befalls
  absl::Duration delay = absl::Milliseconds(1);
};

// A script that befalls each of num_requests reads and writes with the given probability, with one
// of `kinds` (kTorn and kLost for writes only, kBitFlip for reads only: a flipped bit of a write
// stays).
std::vector<Fault> RandomFaults(uint64_t seed, std::span<const Fault::Kind> kinds,
                                uint64_t num_requests, double probability);

// Wraps an engine of either kind and keeps the contract of IoEngine. A request meets the first
// fault of the script that applies to it. Inject, Clear and faults_met may be called from any
// thread.
//
//   auto faulty = FaultyIoEngine::Create(seed, [](ResultHook hook) { return MakeIoEngine(..., hook
//   ...); });
//   (*faulty)->Inject({.kind = Fault::Kind::kEnospc, .op = IoOp::kWrite, .skip = 2});
//
// For a loss of power: TrackWrites, run, Synced after each sync of the files, then PowerCut.
class FaultyIoEngine final : public IoEngine {
 public:
  // `make_inner` must put the hook into its engine's options.
  using MakeInner = std::function<absl::StatusOr<std::unique_ptr<IoEngine>>(ResultHook)>;
  static absl::StatusOr<std::unique_ptr<FaultyIoEngine>> Create(uint64_t seed,
                                                                const MakeInner& make_inner);

  void Inject(const Fault& fault);
  // Requests submitted from now on meet no fault: the cause is gone.
  void Clear();
  uint64_t faults_met() const;

  // From now on it is remembered what each write replaces, until Synced says that it is durable.
  // Files stay open until then: a store of more than it keeps open cannot be tracked.
  void TrackWrites();
  void Synced();
  // Every sector written since holds what it held then, or what any write since put there. Requests
  // from now on fail: the machine is off. REQUIRES: nothing in flight; the files are still open.
  absl::Status PowerCut();

  std::string_view name() const override { return inner_->name(); }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) override;
  absl::Status RemoveFile(FileId file) override { return inner_->RemoveFile(file); }
  void AddBuffer(std::span<std::byte> memory) override { inner_->AddBuffer(memory); }
  void RemoveBuffers() override { inner_->RemoveBuffers(); }
  int unregistered_buffers() const override { return inner_->unregistered_buffers(); }
  void SetDepths(uint16_t device, const QueueDepths& depths) override {
    inner_->SetDepths(device, depths);
  }
  void Submit(std::span<const IoRequest> requests) override;
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override;
  void Wake() override { inner_->Wake(); }
  int in_flight() const override;

 private:
  // A request that was passed on, under a tag of ours.
  struct Passed {
    IoRequest request;
    std::optional<Fault> fault;
    uint64_t random = 0;
    int answers = 0;                     // of the kernel's, seen by the hook
    std::shared_ptr<std::byte> damaged;  // what is written instead of the caller's bytes
  };
  struct Held {
    IoCompletion completion;
    Deadline until;
  };

  explicit FaultyIoEngine(uint64_t seed) : random_(seed) {}

  std::optional<Fault> TakeFault(IoOp op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Failure(const IoRequest& request, int error) const;
  // The end of a request that is not passed on.
  std::optional<absl::Status> Answer(const IoRequest& request, const std::optional<Fault>& fault)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a completion of the inner engine's becomes; a delayed one goes to held_.
  void Complete(IoCompletion completion, std::vector<IoCompletion>* done);
  void ReleaseHeld(std::vector<IoCompletion>* done);
  Deadline FirstHeld() const;
  int64_t OnResult(uint64_t tag, int64_t result);

  // Owned by the using thread.
  struct File {
    std::string path;
    int fd = -1;
  };
  std::vector<File> files_;             // by FileId
  std::vector<IoCompletion> answered_;  // never passed on
  std::vector<Held> held_;

  mutable base::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> script_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Passed> passed_ ABSL_GUARDED_BY(mutex_);  // by our tag
  uint64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t faults_met_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tracks_ ABSL_GUARDED_BY(mutex_) = false;
  UnsyncedWrites unsynced_ ABSL_GUARDED_BY(mutex_);
  absl::Status dead_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<IoEngine> inner_;  // last: its threads call OnResult until it is gone
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_FAULTY_IO_ENGINE_H_
