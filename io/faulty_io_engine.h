// SPDX-License-Identifier: Apache-2.0
//
// An IoEngine that injects disk faults on request. It is for tests of everything above IoEngine,
// and of how the engines resume short transfers.

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

// A fault that is injected into some requests.
struct Fault {
  enum class Kind : uint8_t {
    kEio,       // the request fails with EIO; no bytes are moved
    kEnospc,    // the request fails with ENOSPC; no bytes are moved
    kBitFlip,   // succeeds with one bit flipped: a read's in the buffer, a write's on the disk
    kDelay,     // succeeds; the completion is delivered late by `delay`
    kShort,     // the kernel's first result is cut to a random part; the engine resumes it
    kAgain,     // the kernel's first three results are EAGAIN; the engine tries again
    kTorn,      // writes only: fails with EIO after some of its sectors were written
    kLost,      // writes only: succeeds, but nothing is written
    kDeadRing,  // this and all later requests fail with the ring's error, even after Clear
  };
  Kind kind = Kind::kEio;
  IoOp op = IoOp::kRead;
  uint64_t skip = 0;   // the number of requests of this op, from now on, to skip first
  uint64_t count = 1;  // the number of requests of this op to inject into after those
  absl::Duration delay = absl::Milliseconds(1);
  // If not empty, only requests that touch bytes [begin, end) of the file of this path are injected
  // into, and counted.
  std::string path = {};
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};

// Returns a random script for the first num_requests reads and the first num_requests writes. Each
// request draws one of `kinds`, which is injected with the given probability if it applies to the
// request: kTorn and kLost apply to writes only, kBitFlip to reads only, because a bit that is
// flipped by a write stays on the disk.
std::vector<Fault> RandomFaults(uint64_t seed, std::span<const Fault::Kind> kinds,
                                uint64_t num_requests, double probability);

// Wraps any IoEngine and keeps the contract of IoEngine. A request gets the first fault of the
// script that applies to it. Inject, Clear and faults_met may be called from any thread.
//
//   auto faulty = FaultyIoEngine::Create(seed, [](ResultHook hook) { return MakeIoEngine(..., hook
//   ...); });
//   (*faulty)->Inject({.kind = Fault::Kind::kEnospc, .op = IoOp::kWrite, .skip = 2});
//
// To simulate a loss of power, call TrackWrites before the run, Synced after each sync of the
// files, and PowerCut at the end.
class FaultyIoEngine final : public IoEngine {
 public:
  // Makes the wrapped engine. It must put the hook into the options of that engine.
  using MakeInner = std::function<absl::StatusOr<std::unique_ptr<IoEngine>>(ResultHook)>;
  static absl::StatusOr<std::unique_ptr<FaultyIoEngine>> Create(uint64_t seed,
                                                                const MakeInner& make_inner);

  void Inject(const Fault& fault);
  // Removes all faults from the script: requests submitted from now on get none. A dead ring stays
  // dead.
  void Clear();
  uint64_t faults_met() const;

  // TrackWrites records, from now on, what each write replaces. Synced says that all writes so far
  // are durable and drops the records. REQUIRES: written files stay open until Synced, so a store
  // with more files than it keeps open cannot be tracked.
  void TrackWrites();
  void Synced();
  // Sets every sector written since the last Synced to what it held then, or to what one of the
  // writes since then put there. All later requests fail, as on a machine that is off. REQUIRES:
  // nothing is in flight; the files are still open.
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
  // A request that was passed to the inner engine under a tag of this class.
  struct Passed {
    IoRequest request;
    std::optional<Fault> fault;
    uint64_t random = 0;
    int answers = 0;                     // the number of kernel results that the hook has seen
    std::shared_ptr<std::byte> damaged;  // written instead of the caller's bytes
  };
  struct Held {
    IoCompletion completion;
    Deadline until;
  };

  explicit FaultyIoEngine(uint64_t seed) : random_(seed) {}

  bool Meets(const IoRequest& request, const Fault& fault) const;
  std::optional<Fault> TakeFault(const IoRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Failure(const IoRequest& request, int error) const;
  // Returns the status of a request that is not passed to the inner engine, or nullopt if it is to
  // be passed on.
  std::optional<absl::Status> Answer(const IoRequest& request, const std::optional<Fault>& fault)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Translates a completion of the inner engine and appends it to `done`, or to held_ if it is
  // delayed.
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
  std::vector<IoCompletion> answered_;  // of requests that were not passed on
  std::vector<Held> held_;

  mutable base::Mutex mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> script_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Passed> passed_ ABSL_GUARDED_BY(mutex_);  // by the inner tag
  uint64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t faults_met_ ABSL_GUARDED_BY(mutex_) = 0;
  bool tracks_ ABSL_GUARDED_BY(mutex_) = false;
  UnsyncedWrites unsynced_ ABSL_GUARDED_BY(mutex_);
  absl::Status dead_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<IoEngine> inner_;  // last, destroyed first: its threads call OnResult
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_FAULTY_IO_ENGINE_H_
