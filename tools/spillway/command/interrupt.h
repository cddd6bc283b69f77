// SPDX-License-Identifier: Apache-2.0
//
// Signals. The first interrupt (Ctrl-C) requests that the work stop at its next safe point. The
// second ends the process at once, or after a cleanup if one is registered. SIGUSR1 requests a
// commit.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_

#include <atomic>
#include <functional>

namespace spillway::command {

// Handles SIGINT, SIGTERM and, unless it is ignored (nohup), SIGHUP from now on. The returned flag
// becomes true at the first of these signals.
const std::atomic<bool>& CatchInterrupts();

// From now on the second of these signals runs `tidy` before the process ends, after those that
// earlier calls gave. They run on a thread of their own, while all other threads go on. A third
// signal ends the process at once. Thread-safe.
void TidyOnSecondInterrupt(std::function<void()> tidy);
// Does not return if the second signal has come and its tidying ends the process. Called before the
// process ends in another way, because that would cut the tidying short.
void WaitForTidying();

// Handles SIGUSR1 from now on. Each SIGUSR1 sets the returned flag to true.
std::atomic<bool>& CatchCommitRequests();

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_INTERRUPT_H_
