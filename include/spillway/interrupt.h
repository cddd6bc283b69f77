// SPDX-License-Identifier: Apache-2.0
//
// The interrupt of a thread: ends the thread's own call while that call waits, for example when the
// user presses Ctrl-C.

#ifndef SPILLWAY_INTERRUPT_H_
#define SPILLWAY_INTERRUPT_H_

#include <functional>

#include "spillway/export.h"

namespace spillway {

// Sets the interrupt of the calling thread. `check` runs on this thread, about twenty times a
// second and outside the engine's locks, while the thread waits for one of these:
//   - a calibration of the store's drives, in Open;
//   - a lease, in Acquire or AcquireHost;
//   - the writes of a Commit;
//   - the transfers that must end before a Restore;
//   - the streams on which leases were released, in Commit, Snapshot and Restore;
//   - the plan, in WaitForPlan;
//   - another thread's Commit, Restore or Unregister, in Commit, Snapshot, Restore, Register,
//     Prefetch, Evict, EndStep and WaitForPlan. But `check` does not run while two calls of
//     Register, Restore and Unregister wait for each other.
//
// If `check` returns true, the call ends with Cancelled, after writes in flight have ended. Then
// there is no engine if Open was ended; the call holds no lease, the last commit is the one before,
// the step has not ended, the plan is still being made, and a tensor that was being registered is
// not registered. A Restore that was ended has changed nothing, except that declared uses and the
// plan may be forgotten.
//
// No other wait is ended. An action that cannot be undone is completed, such as a commit whose
// tiles are written. So are calls that give up bytes (Discard, Unregister), and calls that change
// many tiles (Optimizer::Step, ConvertState), which would leave only some of them changed. If
// `check` returned true but the wait was over by then, the call continues as if `check` had
// returned false, and `put_back` is called.
//
// If `check` is empty, as it is in every thread at first, nothing ends a wait. Neither function may
// throw or call the engine.
SPILLWAY_EXPORT void SetInterrupt(std::function<bool()> check, std::function<void()> put_back = {});

}  // namespace spillway

#endif  // SPILLWAY_INTERRUPT_H_
