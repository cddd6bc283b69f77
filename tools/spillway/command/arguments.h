// SPDX-License-Identifier: Apache-2.0
//
// Commands and options of the command line, parsed strictly: a value that is not wholly understood
// or out of range is an error that says what is accepted, and an unknown option one that says what
// was probably meant.
//
// CLI11 does the work behind these. Only the sources that look into what it parsed include it: it
// is all in headers, and takes 6 s to compile.

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

// A command below `app`. The first line of its description is its line in the help of `app`.
CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& description);
// `then` is called once the command was chosen and all of its options are read.
void WhenChosen(CLI::App* command, std::function<void()> then);

// An option, to say more of it: of its value in the help, and that it is needed.
class AddedOption {
 public:
  explicit AddedOption(CLI::Option* option) : option_(option) {}

  AddedOption Type(const std::string& words) const;    // what stands for its value
  AddedOption Default(const std::string& text) const;  // "": none is shown
  AddedOption Required() const;

 private:
  CLI::Option* option_;
};

// An option that hands its text to `take`. What that says of a text it does not accept is the
// error.
using TakeText = std::function<absl::Status(const std::string& text)>;
AddedOption AddOption(CLI::App* app, const std::string& name, const TakeText& take,
                      const std::string& help);

// An option whose text `parse` turns into a StatusOr of what `*value` may hold.
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

// Each adds an option whose value is `*value` until one is given. The help shows it as the default
// of numbers, seeds, devices and choices.
AddedOption AddText(CLI::App* app, const std::string& name, std::string* value,
                    const std::string& help);
AddedOption AddList(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                    const std::string& help);
// A positional that takes all words that are left.
AddedOption AddWords(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                     const std::string& help);
// The positional STORE: DIR, or DIR,DIR in the store's order; needed. And its check.
AddedOption AddStoreArgument(CLI::App* app, std::vector<std::string>* value);
absl::Status CheckStoreArgument(const std::vector<std::string>& value);
AddedOption AddNumber(CLI::App* app, const std::string& name, double* value, const Range& range,
                      const std::string& help);
AddedOption AddInteger(CLI::App* app, const std::string& name, int64_t* value, int64_t least,
                       int64_t most, const std::string& help);
AddedOption AddSeed(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help);
// A size in bytes: "48MiB", "8GB", "4096", and "unlimited", which is kUnlimited; at least `least`.
AddedOption AddSize(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help, uint64_t least = 0);

// Where to compute: "host", "cuda" (the first GPU), "cuda:N".
AddedOption AddDevice(CLI::App* app, const std::string& name, Device* value,
                      const std::string& help);

// True once it is there; "--json=false" is false.
AddedOption AddFlag(CLI::App* app, const std::string& name, bool* value, const std::string& help);

// One of a few words.
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

// The option or subcommand that is nearest to what was written, or "".
std::string Nearest(const CLI::App& app, const std::string& unknown);

// UsageError naming the first of the arguments that the app (or the subcommand chosen) did not
// understand, and the option or subcommand nearest to it.
absl::Status CheckNothingLeft(const CLI::App& app);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_ARGUMENTS_H_
