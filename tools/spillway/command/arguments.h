// SPDX-License-Identifier: Apache-2.0
//
// Options of the command line, parsed strictly: a value that is not wholly understood or out of
// range is an error that says what is accepted, and an unknown option one that says what was
// probably meant.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::command {

// An interval of numbers; `open` ends are outside it.
struct Range {
  double least = 0;
  double most = 0;
  bool open_least = false;
  bool open_most = false;
};

// All of `text` as a finite number in the range, else InvalidArgument saying what is accepted.
absl::StatusOr<double> ParseNumber(const std::string& text, const Range& range);
// All of `text` as a whole number in [least, most].
absl::StatusOr<int64_t> ParseInteger(const std::string& text, int64_t least, int64_t most);
// "a,b,c" as its parts; InvalidArgument for an empty part.
absl::StatusOr<std::vector<std::string>> ParseList(const std::string& text);

// Each adds an option whose value is `*value` until one is given; the help shows it as the default.
CLI::Option* AddText(CLI::App* app, const std::string& name, std::string* value,
                     const std::string& help);
CLI::Option* AddList(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                     const std::string& help);
// The positional STORE: DIR, or DIR,DIR in the store's order; needed. And its check.
CLI::Option* AddStoreArgument(CLI::App* app, std::vector<std::string>* value);
absl::Status CheckStoreArgument(const std::vector<std::string>& value);
CLI::Option* AddNumber(CLI::App* app, const std::string& name, double* value, const Range& range,
                       const std::string& help);
CLI::Option* AddInteger(CLI::App* app, const std::string& name, int64_t* value, int64_t least,
                        int64_t most, const std::string& help);
CLI::Option* AddSeed(CLI::App* app, const std::string& name, uint64_t* value,
                     const std::string& help);
// A size in bytes: "48MiB", "8GB", "4096", and "unlimited", which is kUnlimited; at least `least`.
CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t* value,
                     const std::string& help, uint64_t least = 0);

// Where to compute: "host", "cuda" (the first GPU), "cuda:N".
CLI::Option* AddDevice(CLI::App* app, const std::string& name, Device* value,
                       const std::string& help);

// One of a few words.
template <typename E>
CLI::Option* AddChoice(CLI::App* app, const std::string& name, E* value,
                       const std::vector<std::pair<std::string, E>>& choices,
                       const std::string& help) {
  std::string words;
  std::string default_word;
  for (const auto& [word, choice] : choices) {
    words += (words.empty() ? "" : "|") + word;
    if (choice == *value) default_word = word;
  }
  const auto parse = [=](const std::string& text) {
    for (const auto& [word, choice] : choices) {
      if (word == text) {
        *value = choice;
        return;
      }
    }
    throw CLI::ValidationError(name, "'" + text + "' is not one of " + words);
  };
  return app->add_option_function<std::string>(name, parse, help)
      ->type_name(words)
      ->default_str(default_word);
}

// The option or subcommand that is nearest to what was written, or "".
std::string Nearest(const CLI::App& app, const std::string& unknown);

// UsageError naming the first of the arguments that the app (or the subcommand chosen) did not
// understand, and the option or subcommand nearest to it.
absl::Status CheckNothingLeft(const CLI::App& app);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_
