// SPDX-License-Identifier: Apache-2.0
//
// What the help says, for shells and for man: derived from the flags themselves, so that there is
// nothing to keep in step.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_

#include <string>
#include <vector>

#include "tools/spillway/command/arguments.h"

namespace spillway::command {

// A script for bash (`complete -F`) or zsh (`compdef`, through bash's).
std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

// spillway(1) or, for a subcommand, spillway-train(1), in man's macros. `version` is "0.1.0".
std::string ManPage(const CLI::App& app, const std::string& version);
// Of `app` and of all commands below it: "spillway", "spillway-train", "spillway-bench-io".
std::vector<std::string> ManPageNames(const CLI::App& app);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_HELP_FORMATS_H_
