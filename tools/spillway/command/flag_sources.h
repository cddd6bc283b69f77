// SPDX-License-Identifier: Apache-2.0
//
// Takes a command's flags from their sources. The command line has precedence over the environment
// (SPILLWAY_SEQ is --seq), the environment over a TOML file (--config run.toml), and the file over
// the default. A value is not taken either if a source before it gives the flag's alternative, such
// as --tokens-file for --tokens. --print-config writes such a file, with the source of each value
// beside its flag. config_file.h describes the format.
//
// The environment and the file become words of the command line before it is parsed, so a value is
// parsed, and refused, in the same way whatever its source.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"

namespace spillway::command {

class FlagSources {
 public:
  // Gives the command --config and --print-config. Only for commands that may safely take flags
  // from an environment: none that removes or repairs. A file may have flags of `other`, too, which
  // this command does not have: they change nothing.
  void Offer(CLI::App* command, const CLI::App* other = nullptr);

  // `words` are those after the program's name. Returns them with the words that the environment
  // and the file add, or only the command and --help if help is requested. UsageError if the file
  // cannot be read, is not TOML or has a key that is not a flag.
  absl::StatusOr<std::vector<std::string>> Complete(const CLI::App& app,
                                                    std::vector<std::string> words);
  // Warnings about the SPILLWAY_* variables in the environment that Complete found to change
  // nothing: a misspelt flag, or one that counts only on the command line. Each is a line without a
  // line break.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Returns the message, followed by the source of each flag that it names and that is not from the
  // command line: "; --seq is from the environment's SPILLWAY_SEQ".
  std::string Explain(std::string message) const;
  // Returns `run` with the messages of its usage errors explained.
  Run Explained(Run run) const;

  // Whether --print-config was given. `command` is the one that was parsed.
  bool wants_print(const CLI::App& command) const;
  // Returns the file, with a line for each flag of the command. UsageError if a value is not UTF-8,
  // which no TOML file can hold.
  absl::StatusOr<std::string> Print(const CLI::App& command) const;

 private:
  std::map<const CLI::App*, const CLI::App*> offered_;  // with the other command, or null
  // The source, in words, of each flag ("--seq") that is not from the command line.
  std::map<std::string, std::string> source_;
  std::vector<std::string> warnings_;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_
