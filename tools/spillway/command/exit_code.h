// SPDX-License-Identifier: Apache-2.0
//
// How the command ends: the exit codes that scripts rely on, and which failure gives which.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_

#include <string_view>

#include "absl/status/status.h"

namespace spillway::command {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,   // the work failed: malformed input, a full disk, a store in the way
  kUsage = 2,    // flags: unknown, out of range, or budgets too small
  kCannot = 3,   // this machine lacks what was asked for
  kCorrupt = 4,  // stored data does not match its checksum
  kInterrupted = 130,
};

// An error of the command line, whatever its code elsewhere.
absl::Status UsageError(std::string_view message);
// The same error, but ending with `code`.
absl::Status WithExitCode(const absl::Status& status, ExitCode code);

// The code noted by the two above; else by the status: DataLoss is kCorrupt, Cancelled
// kInterrupted, Unimplemented kCannot, ResourceExhausted kUsage (a budget) unless it was the
// operating system that ran out: of memory or threads kCannot, of room or files kFailed; the rest
// kFailed.
ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_EXIT_CODE_H_
