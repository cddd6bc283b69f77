// SPDX-License-Identifier: Apache-2.0
//
// Failed writes, and copies that failed after their lease was granted: nobody waits for these, so
// the failure is kept until somebody is told of it. Externally synchronised.

#ifndef SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
#define SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_

#include <utility>

#include "absl/status/status.h"
#include "src/engine/pager/leases.h"

namespace spillway::engine {

class WriteFailures {
 public:
  explicit WriteFailures(Leases* leases) : leases_(*leases) {}

  // Nobody was told of it. Whoever leases next is, so nobody may without asking.
  void SetUntold(const absl::Status& failure) {
    untold_ = failure;
    leases_.CloseAll();
  }
  // What nobody was told of; ok: nothing.
  const absl::Status& untold() const { return untold_; }
  // A caller is told of `failure` now.
  void Told(const absl::Status& failure) {
    if (failure == untold_) untold_ = absl::OkStatus();
  }
  // The same, of whatever there is.
  absl::Status TakeUntold() { return std::exchange(untold_, absl::OkStatus()); }

  // Nothing is written unasked from a failed write on until one succeeds.
  void WriteEnded(bool ok) { last_failed_ = !ok; }
  bool MayWriteUnasked() const { return !last_failed_; }

 private:
  Leases& leases_;
  absl::Status untold_;
  bool last_failed_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_WRITE_FAILURES_H_
