// SPDX-License-Identifier: Apache-2.0
//
// How a thread ends its own call while that call waits, as when somebody presses Ctrl-C.

#ifndef SPILLWAY_INTERRUPT_H_
#define SPILLWAY_INTERRUPT_H_

#include <functional>

#include "spillway/export.h"

namespace spillway {

// While this thread waits in Acquire or AcquireHost, for what Commit writes, for transfers that
// Restore must see ended, for streams on which leases were released (Commit, Snapshot and Restore),
// or in WaitForPlan, `check` runs on it some twenty times a second, outside the engine's locks. It
// does so too where these, Register, Prefetch, Evict and EndStep wait for another thread's Commit,
// or for its Restore or Unregister, but not where two calls of Register, Restore and Unregister
// wait for each other. When it returns true the call ends with Cancelled: no lease is held, the
// last commit is the one before, the step has not ended, the plan is still being made, a tensor
// that was being registered is not. Writes under way end first. A Restore that was ended has
// changed nothing but that declared uses and the plan are forgotten.
//
// Nothing else is ended: not what cannot be undone, as a commit whose tiles are written, not what
// gives bytes up (Discard, Unregister), and not calls that change many tiles (Optimizer::Step,
// ConvertState), which would leave some changed. If `check` returned true and the wait was over by
// then, the call goes on as if not asked, and `put_back` is called.
//
// An empty `check`, as in every thread at first: nothing ends a wait. Neither function may throw,
// or call the engine.
SPILLWAY_EXPORT void SetInterrupt(std::function<bool()> check, std::function<void()> put_back = {});

}  // namespace spillway

#endif  // SPILLWAY_INTERRUPT_H_
