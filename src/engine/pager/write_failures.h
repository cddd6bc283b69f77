// SPDX-License-Identifier: Apache-2.0
//
// Failures of writes, and of copies whose lease was already granted. No request waits for these, so
// the failure is kept until it is reported to a caller. Externally synchronised.
//
// A write that fails leaves its tile as it was. The lease or the commit that waits for it fails at
// once; otherwise the next Acquire or EndStep returns the error. A later commit tries again, in
// another place unless there was no room, and fails only if that fails.

#ifndef SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
#define SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace spillway::engine {

class WriteFailures {
 public:
  // In ascending order of severity.
  enum class Kind : uint8_t {
    kRetried,   // a write that a commit tries again, because its tile belongs to the commit
    kUnneeded,  // a write of a tile that is still in memory and belongs to no commit
    kLost,      // what a caller has, or has written, is lost
  };

  // Keeps a failure that was not reported to a caller.
  void SetUnreported(const absl::Status& failure, Kind kind) {
    if (!unreported_.ok() && kind < kind_) return;
    unreported_ = failure;
    kind_ = kind;
  }
  // Records that `failure` is reported to a caller now.
  void NoteReported(const absl::Status& failure) {
    if (failure == unreported_) unreported_ = absl::OkStatus();
  }
  // Returns the failure that was not reported to a caller, and clears it.
  absl::Status TakeUnreported() { return std::exchange(unreported_, absl::OkStatus()); }
  // The same, if bytes are lost.
  absl::Status TakeLost() { return kind_ == Kind::kLost ? TakeUnreported() : absl::OkStatus(); }
  // Records that a commit has tried again the writes that failed, and that its caller knows how
  // that ended.
  void CommitEnded() {
    if (kind_ == Kind::kRetried) unreported_ = absl::OkStatus();
  }

  // Records the result of a write. After a failure, nothing is written that no caller requested,
  // until a write succeeds.
  void WriteEnded(bool ok) { last_failed_ = !ok; }
  bool MayWriteUnasked() const { return !last_failed_; }

 private:
  absl::Status unreported_;
  Kind kind_ = Kind::kRetried;  // of `unreported_`
  bool last_failed_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
