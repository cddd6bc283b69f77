// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C: the first asks the work to stop at its next good moment, the second ends the process at
// once. SIGUSR1 asks for a commit.

#ifndef SPILLWAY_TOOLS_SPILLWAY_INTERRUPT_H_
#define SPILLWAY_TOOLS_SPILLWAY_INTERRUPT_H_

#include <atomic>

namespace spillway::command {

// Handles SIGINT and SIGTERM from now on; the flag returned becomes true with the first of them.
const std::atomic<bool>& CatchInterrupts();

// Handles SIGUSR1 from now on: each makes the flag true.
std::atomic<bool>& CatchCommitRequests();

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_INTERRUPT_H_
