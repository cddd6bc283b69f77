// SPDX-License-Identifier: Apache-2.0
//
// Kills a process while it commits: a child of this one, with SIGKILL, which no handler sees.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_KILLED_COMMIT_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_KILLED_COMMIT_H_

#include <atomic>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace spillway::capacity {

// Runs `work` in a child process. It calls `begins` just before the commit, and returns when the
// commit has succeeded. The child is killed `delay` after `begins`, or when `work` has returned.
// Returns whether the kill came before that. Errors: what `work` returned; Cancelled, with the
// child killed, if `stop` becomes true. REQUIRES: no thread of this process is at work, as the
// child has only a copy of this one.
using CommitWork = std::function<absl::Status(const std::function<void()>& begins)>;
absl::StatusOr<bool> KillDuringCommit(const CommitWork& work, absl::Duration delay,
                                      const std::atomic<bool>* stop);

// Kills the child of the call that is under way, if there is one. For a process that is about to
// end. Thread-safe.
void KillCommittingChild();

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_KILLED_COMMIT_H_
