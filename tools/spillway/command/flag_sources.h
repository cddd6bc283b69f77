// SPDX-License-Identifier: Apache-2.0
//
// Where a command's flags come from: the command line, before the environment (SPILLWAY_SEQ is
// --seq), before a TOML file (--config run.toml), before the default. --print-config writes such a
// file, and beside each flag where its value came from. config_file.h says what the file holds.
//
// The environment and the file become words of the command line before it is parsed, so that a
// value is understood, and refused, in one way wherever it comes from.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/spillway/command/arguments.h"

namespace spillway::command {

class FlagSources {
 public:
  // Gives the command --config and --print-config. For commands that are safe to be told what to do
  // by an environment: none that removes or repairs.
  void Offer(CLI::App* command);

  // `words` are those behind the program's name. The same with the words that environment and file
  // add; where help is asked for, that alone. UsageError: the file cannot be read, is no TOML or
  // has a key that is no flag.
  absl::StatusOr<std::vector<std::string>> Complete(const CLI::App& app,
                                                    std::vector<std::string> words);
  // Of the environment's SPILLWAY_* that Complete looked at, those that change nothing: a misspelt
  // flag, or one that counts only on the command line. A line each, without its end.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // ", from the environment's SPILLWAY_SEQ" for the flag that `message` begins with; "" for one of
  // the command line.
  std::string Explain(const std::string& message) const;

  // Whether --print-config was given, for the command that was parsed.
  bool wants_print(const CLI::App& command) const;
  // The file: a line for each flag of the command. UsageError: a value is not UTF-8, which no TOML
  // file holds.
  absl::StatusOr<std::string> Print(const CLI::App& command) const;

 private:
  std::vector<const CLI::App*> offered_;
  // Of a flag, "--seq", that is not from the command line: in words.
  std::map<std::string, std::string> source_;
  std::vector<std::string> warnings_;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_FLAG_SOURCES_H_
