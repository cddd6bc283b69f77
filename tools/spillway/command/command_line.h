// SPDX-License-Identifier: Apache-2.0
//
// Turns the words of the command line into the work of a subcommand.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/spillway/command/commands.h"

namespace spillway::command {

// Parses the words after the program's name. `*run` is empty if there is nothing left to do,
// because help, the version or a configuration was printed. UsageError if the words are not
// understood.
absl::Status ParseCommandLine(const std::vector<std::string>& given, Run* run);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_
