// SPDX-License-Identifier: Apache-2.0
//
// From words to the work of a subcommand.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/spillway/command/commands.h"

namespace spillway::command {

// Understands the words behind the program's name. `*run` stays empty where that was all: help, the
// version or a configuration was printed. UsageError: they are not understood.
absl::Status ParseCommandLine(const std::vector<std::string>& given, Run* run);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMAND_LINE_H_
