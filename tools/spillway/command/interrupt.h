// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C: the first asks the work to stop at its next good moment, the second ends the process at
// once, after tidying up if there is something to tidy. SIGUSR1 asks for a commit.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_

#include <atomic>
#include <functional>

namespace spillway::command {

// Handles SIGINT, SIGTERM and, unless it is ignored (nohup), SIGHUP from now on; the flag returned
// becomes true with the first of them.
const std::atomic<bool>& CatchInterrupts();

// From now on the second of them runs `tidy`, on a thread of its own beside all that still runs,
// before the process ends; a third ends it at once. To be called at most once, after
// CatchInterrupts.
void TidyOnSecondInterrupt(std::function<void()> tidy);

// Handles SIGUSR1 from now on: each makes the flag true.
std::atomic<bool>& CatchCommitRequests();

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_
