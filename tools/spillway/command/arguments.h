// SPDX-License-Identifier: Apache-2.0
//
// Commands and options of the command line, parsed strictly: a value that is malformed or out of
// range gives an error that says what is accepted, and an unknown option gives an error that names
// what was probably meant.
//
// CLI11 does the parsing. Only the sources that inspect what it parsed include it: it is
// header-only and takes 6 s to compile.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace spillway::command {

// An interval of numbers. An `open` end does not belong to it.
struct Range {
  double least = 0;
  double most = 0;
  bool open_least = false;
  bool open_most = false;
};

// Parses all of `text` as a finite number in the range. InvalidArgument, saying what is accepted,
// if it is not one.
absl::StatusOr<double> ParseNumber(const std::string& text, const Range& range);
// Parses all of `text` as a whole number in [least, most]. InvalidArgument if it is not one.
absl::StatusOr<int64_t> ParseInteger(const std::string& text, int64_t least, int64_t most);
// Splits "a,b,c" into its parts. InvalidArgument if a part is empty.
absl::StatusOr<std::vector<std::string>> ParseList(const std::string& text);

// Adds a command below `app`. The help of `app` lists it with the first line of `description`.
CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& description);
// Registers `then`, which is called if the command was chosen, after all of its options are read.
void WhenChosen(CLI::App* command, std::function<void()> then);

// The help of `app` shows the options that are added from now on under the heading `group`. Groups
// come in the order of their first options.
void BeginGroup(CLI::App* app, const std::string& group);
// Moves options that were added to another group. `names` are as in "--model"; each exists.
void MoveToGroup(CLI::App* app, const std::string& group, const std::vector<std::string>& names);

// Whether an option was given, by the command line or another source of flags.
bool IsGiven(const CLI::App& app, const std::string& name);

// An option that was added. The setters define what the help shows of its value, and make it
// required.
class AddedOption {
 public:
  explicit AddedOption(CLI::Option* option) : option_(option) {}

  AddedOption Type(const std::string& words) const;    // placeholder of the value in the help
  AddedOption Default(const std::string& text) const;  // default in the help; "" shows none
  AddedOption Required() const;
  AddedOption Excludes(const AddedOption& other) const;  // a usage error if both are given

 private:
  CLI::Option* option_;
};

// Adds an option whose text is given to `take`. If `take` does not accept the text, the message of
// its status is the error.
using TakeText = std::function<absl::Status(const std::string& text)>;
AddedOption AddOption(CLI::App* app, const std::string& name, const TakeText& take,
                      const std::string& help);

// Adds an option whose text `parse` turns into a StatusOr of a value for `*value`.
template <typename T, typename Parse>
AddedOption AddParsed(CLI::App* app, const std::string& name, T* value, const Parse& parse,
                      const std::string& help) {
  const auto take = [=](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) return parsed.status();
    *value = *std::move(parsed);
    return absl::OkStatus();
  };
  return AddOption(app, name, take, help);
}

// Each of these adds an option that sets `*value`, which keeps its initial value if the option is
// not given. The help shows the initial value as the default of numbers, seeds and choices, and
// "host" as the default of devices.
AddedOption AddText(CLI::App* app, const std::string& name, std::string* value,
                    const std::string& help);
AddedOption AddList(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                    const std::string& help);
// Adds a positional that takes all remaining words.
AddedOption AddWords(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                     const std::string& help);
// AddStoreArgument adds the positional STORE: DIR, or DIR,DIR in the store's order. It is needed:
// CheckStoreArgument returns a usage error if it was not given.
AddedOption AddStoreArgument(CLI::App* app, std::vector<std::string>* value);
absl::Status CheckStoreArgument(const std::vector<std::string>& value);
AddedOption AddNumber(CLI::App* app, const std::string& name, double* value, const Range& range,
                      const std::string& help);
AddedOption AddInteger(CLI::App* app, const std::string& name, int64_t* value, int64_t least,
                       int64_t most, const std::string& help);
AddedOption AddSeed(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help);
// Adds a size in bytes of at least `least`: "48MiB", "8GB", "4096", or "unlimited", which is
// kUnlimited.
AddedOption AddSize(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help, uint64_t least = 0);

// Adds the device to compute on: "host", "cuda" (the first GPU), "cuda:N".
AddedOption AddDevice(CLI::App* app, const std::string& name, Device* value,
                      const std::string& help);

// Adds a switch: `*value` is true if it is given, and false for "--json=false".
AddedOption AddFlag(CLI::App* app, const std::string& name, bool* value, const std::string& help);

// Adds an option whose value is one of a few words.
template <typename E>
AddedOption AddChoice(CLI::App* app, const std::string& name, E* value,
                      const std::vector<std::pair<std::string, E>>& choices,
                      const std::string& help) {
  std::string words;
  std::string default_word;
  for (const auto& [word, choice] : choices) {
    words += (words.empty() ? "" : "|") + word;
    if (choice == *value) default_word = word;
  }
  const auto take = [=](const std::string& text) {
    for (const auto& [word, choice] : choices) {
      if (word == text) {
        *value = choice;
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError("'" + text + "' is not one of " + words);
  };
  return AddOption(app, name, take, help).Type(words).Default(default_word);
}

// Returns the text as a word of a shell's command.
std::string ShellWord(const std::string& text);
// Returns the command with those of its options that were given, wherever they came from, as a
// shell reads it; without those named in `left_out`. To be called while the command line is parsed.
std::string GivenAsText(const CLI::App& command, const std::vector<std::string>& left_out);

// Returns the option or subcommand that is nearest to `unknown`, or "" if none is near.
std::string Nearest(const CLI::App& app, const std::string& unknown);

// Returns a UsageError if `app` or a command below it that was chosen has an argument that it did
// not accept. The message names the first one and, if one is near, the option or subcommand nearest
// to it.
absl::Status CheckNothingLeft(const CLI::App& app);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_
