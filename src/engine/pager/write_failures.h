// SPDX-License-Identifier: Apache-2.0
//
// Failures of writes, and of copies whose lease was already granted. No request waits for these, so
// the failure is kept until it is reported to a caller. Externally synchronised.

#ifndef SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
#define SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_

#include <utility>

#include "absl/status/status.h"
#include "src/engine/pager/leases.h"

namespace spillway::engine {

class WriteFailures {
 public:
  explicit WriteFailures(Leases* leases) : leases_(*leases) {}

  // Keeps a failure that no caller was told of. The next lease reports it, so all counts are
  // closed: no reader takes a lease without the lock.
  // `is_retried`: a commit will try it again, as it does the writes of tiles that belong to it.
  void SetUntold(const absl::Status& failure, bool is_retried) {
    leases_.CloseAll();
    if (is_retried && !untold_.ok() && !is_retried_) return;  // the other matters more
    untold_ = failure;
    is_retried_ = is_retried;
  }
  // The failure that no caller was told of; ok if there is none.
  const absl::Status& untold() const { return untold_; }
  // Records that a caller is told of `failure` now.
  void Told(const absl::Status& failure) {
    if (failure == untold_) untold_ = absl::OkStatus();
  }
  // Returns the failure that no caller was told of, and clears it.
  absl::Status TakeUntold() { return std::exchange(untold_, absl::OkStatus()); }
  // The same, unless a commit will try it again.
  absl::Status TakeFinal() { return is_retried_ ? absl::OkStatus() : TakeUntold(); }
  // Records that a commit has tried again the writes that failed, and that its caller knows how
  // that ended.
  void CommitEnded() {
    if (is_retried_) untold_ = absl::OkStatus();
  }

  // Records the result of a write. After a failure, nothing is written that no caller requested,
  // until a write succeeds.
  void WriteEnded(bool ok) { last_failed_ = !ok; }
  bool MayWriteUnasked() const { return !last_failed_; }

 private:
  Leases& leases_;
  absl::Status untold_;
  bool is_retried_ = false;  // of the last failure
  bool last_failed_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
