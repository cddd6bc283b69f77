// SPDX-License-Identifier: Apache-2.0
//
// The command's exit codes, which scripts rely on, and the failure that each stands for.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_

#include <string_view>

#include "absl/status/status.h"

namespace spillway::command {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,   // the work failed: malformed input, a full disk, a store that already exists
  kUsage = 2,    // flags that are unknown or out of range, or budgets that are too small
  kCannot = 3,   // this machine lacks what was asked for
  kCorrupt = 4,  // stored data does not match its checksum
  kInterrupted = 130,
};

// Returns an error that ends the command with kUsage.
absl::Status UsageError(std::string_view message);
// Returns the same error, marked so that it ends the command with `code`.
absl::Status WithExitCode(const absl::Status& status, ExitCode code);

// Returns the code that one of the functions above set. Without one, the status decides: OK gives
// kDone, DataLoss kCorrupt, Cancelled kInterrupted, Unimplemented kCannot. ResourceExhausted gives
// kUsage (a budget), unless the operating system ran out: of memory or threads it gives kCannot, of
// disk space or files kFailed. Every other error gives kFailed.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_
