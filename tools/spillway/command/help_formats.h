// SPDX-License-Identifier: Apache-2.0
//
// Formats the help as completion scripts for shells and as man pages. Both are derived from the
// flags themselves, so there is nothing to keep in step.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_

#include <string>
#include <vector>

#include "tools/spillway/command/arguments.h"

namespace spillway::command {

// Returns a script for bash (`complete -F`) or zsh (`compdef`, running the script for bash).
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

// Returns the page spillway(1) or, for a subcommand, spillway-train(1), in man's macros. `version`
// has the form "0.1.0".
std::string ManPage(const CLI::App& app, const std::string& version);
// Returns the names of the pages of `app` and of all commands below it: "spillway",
// "spillway-train", "spillway-bench-io".
std::vector<std::string> ManPageNames(const CLI::App& app);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_
