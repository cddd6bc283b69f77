// SPDX-License-Identifier: Apache-2.0
//
// Wraps CLI11 in functions of our own, and holds the strict parsers and the search for what was
// probably meant.

#include "tools/spillway/command/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <system_error>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "spillway/types.h"
#include "src/base/bytes.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

// Applies std::from_chars. False unless it accepts the whole text.
template <typename T>
bool ParseWhole(const std::string& text, T* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end && !text.empty();
}

// Describes the range: "from 0 to below 1", "at least 1".
std::string Describe(const Range& range) {
  const std::string least =
      absl::StrFormat("%s %g", range.open_least ? "above" : "from", range.least);
  if (range.most == std::numeric_limits<double>::max()) {
    return range.open_least ? least : absl::StrFormat("at least %g", range.least);
  }
  return absl::StrFormat("%s to %s%g", least, range.open_most ? "below " : "", range.most);
}

bool Contains(const Range& range, double value) {
  return std::isfinite(value) && (range.open_least ? value > range.least : value >= range.least) &&
         (range.open_most ? value < range.most : value <= range.most);
}

// Returns the number of insertions, deletions and substitutions that turn one word into the other
// (Levenshtein distance).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
}

// Returns the words that `unknown` may stand for: options if it begins with a dash, else
// subcommands.
std::vector<std::string> Candidates(const CLI::App& app, const std::string& unknown) {
  std::vector<std::string> words;
  if (unknown.starts_with('-')) {
    for (const CLI::Option* option : app.get_options()) words.push_back(option->get_name());
  } else {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
      words.push_back(sub->get_name());
    }
  }
  return words;
}

}  // namespace

absl::StatusOr<double> ParseNumber(const std::string& text, const Range& range) {
  double value = 0;
  if (ParseWhole(text, &value) && Contains(range, value)) return value;
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' is not a number %s", text, Describe(range)));
}

absl::StatusOr<int64_t> ParseInteger(const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  if (ParseWhole(text, &value) && value >= least && value <= most) return value;
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' is not a whole number from %d to %d", text, least, most));
}

absl::StatusOr<std::vector<std::string>> ParseList(const std::string& text) {
  std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (std::find(parts.begin(), parts.end(), "") == parts.end()) return parts;
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' has an empty part; expected A or A,B", text));
}

CLI::App* AddCommand(CLI::App* app, const std::string& name, const std::string& description) {
  return app->add_subcommand(name, description);
}

void WhenChosen(CLI::App* command, std::function<void()> then) {
  command->callback(std::move(then));
}

void BeginGroup(CLI::App* app, const std::string& group) { app->option_defaults()->group(group); }

bool IsGiven(const CLI::App& app, const std::string& name) {
  return app.get_option(name)->count() > 0;
}

void MoveToGroup(CLI::App* app, const std::string& group, const std::vector<std::string>& names) {
  for (const std::string& name : names) app->get_option(name)->group(group);
}

AddedOption AddedOption::Type(const std::string& words) const {
  option_->type_name(words);
  return *this;
}

AddedOption AddedOption::Default(const std::string& text) const {
  option_->default_str(text);
  return *this;
}

AddedOption AddedOption::Required() const {
  option_->required();
  return *this;
}

AddedOption AddedOption::Excludes(const AddedOption& other) const {
  option_->excludes(other.option_);
  return *this;
}

AddedOption AddOption(CLI::App* app, const std::string& name, const TakeText& take,
                      const std::string& help) {
  const auto take_or_throw = [name, take](const std::string& text) {
    const absl::Status taken = take(text);
    if (!taken.ok()) throw CLI::ValidationError(name, std::string(taken.message()));
  };
  return AddedOption(app->add_option_function<std::string>(name, take_or_throw, help));
}

AddedOption AddFlag(CLI::App* app, const std::string& name, bool* value, const std::string& help) {
  return AddedOption(app->add_flag(name, *value, help));
}

AddedOption AddWords(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                     const std::string& help) {
  return AddedOption(app->add_option(name, *value, help));
}

AddedOption AddText(CLI::App* app, const std::string& name, std::string* value,
                    const std::string& help) {
  const auto parse = [](const std::string& text) -> absl::StatusOr<std::string> {
    if (text.empty()) return absl::InvalidArgumentError("an empty value");
    return text;
  };
  return AddParsed(app, name, value, parse, help).Type("TEXT");
}

AddedOption AddList(CLI::App* app, const std::string& name, std::vector<std::string>* value,
                    const std::string& help) {
  return AddParsed(app, name, value, ParseList, help).Type("LIST");
}

AddedOption AddStoreArgument(CLI::App* app, std::vector<std::string>* value) {
  return AddParsed(app, "STORE", value, ParseList, "The store's folders, in order: DIR or DIR,DIR")
      .Type("");
}

absl::Status CheckStoreArgument(const std::vector<std::string>& value) {
  return value.empty() ? UsageError("a store is needed: the name of its folder, or DIR,DIR")
                       : absl::OkStatus();
}

AddedOption AddNumber(CLI::App* app, const std::string& name, double* value, const Range& range,
                      const std::string& help) {
  const auto parse = [range](const std::string& text) { return ParseNumber(text, range); };
  return AddParsed(app, name, value, parse, help)
      .Type("NUMBER")
      .Default(absl::StrFormat("%g", *value));
}

AddedOption AddInteger(CLI::App* app, const std::string& name, int64_t* value, int64_t least,
                       int64_t most, const std::string& help) {
  const auto parse = [=](const std::string& text) { return ParseInteger(text, least, most); };
  return AddParsed(app, name, value, parse, help).Type("N").Default(std::to_string(*value));
}

AddedOption AddSeed(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help) {
  const auto parse = [](const std::string& text) -> absl::StatusOr<uint64_t> {
    uint64_t seed = 0;
    if (ParseWhole(text, &seed)) return seed;
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not a whole number from 0 to 2^64 - 1", text));
  };
  return AddParsed(app, name, value, parse, help).Type("N").Default(std::to_string(*value));
}

AddedOption AddSize(CLI::App* app, const std::string& name, uint64_t* value,
                    const std::string& help, uint64_t least) {
  const auto parse = [least](const std::string& text) -> absl::StatusOr<uint64_t> {
    if (text == "unlimited") return kUnlimited;
    absl::StatusOr<uint64_t> bytes = base::ParseBytes(text);
    if (!bytes.ok() || *bytes >= least) return bytes;
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is less than %s", text, base::FormatBytes(least)));
  };
  return AddParsed(app, name, value, parse, help).Type("SIZE");
}

AddedOption AddDevice(CLI::App* app, const std::string& name, Device* value,
                      const std::string& help) {
  constexpr int kMostDevices = 1024;
  constexpr std::string_view kIndexed = "cuda:";
  const auto parse = [=](const std::string& text) -> absl::StatusOr<Device> {
    if (text == "host") return Device::Host();
    if (text == "cuda") return Device::Cuda(0);
    int index = 0;
    if (text.starts_with(kIndexed) && ParseWhole(text.substr(kIndexed.size()), &index) &&
        index >= 0 && index < kMostDevices) {
      return Device::Cuda(index);
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not host, cuda or cuda:N, such as cuda:0", text));
  };
  return AddParsed(app, name, value, parse, help).Type("host|cuda[:N]").Default("host");
}

std::string ShellWord(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string GivenAsText(const CLI::App& command, const std::vector<std::string>& left_out) {
  std::string text = absl::StrCat("spillway ", command.get_name());
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    const bool is_left_out = std::find(left_out.begin(), left_out.end(), name) != left_out.end();
    if (option->count() == 0 || option->get_positional() || is_left_out) continue;
    absl::StrAppend(&text, " ", name);
    if (option->get_expected_max() > 0) {
      absl::StrAppend(&text, " ", ShellWord(absl::StrJoin(option->results(), ",")));
    } else if (!option->as<bool>()) {
      absl::StrAppend(&text, "=false");
    }
  }
  return text;
}

std::string Nearest(const CLI::App& app, const std::string& unknown) {
  size_t least = std::max<size_t>(2, unknown.size() / 3) + 1;
  std::string nearest;
  for (const std::string& word : Candidates(app, unknown)) {
    const size_t distance = EditDistance(unknown, word);
    if (distance >= least) continue;
    least = distance;
    nearest = word;
  }
  return nearest;
}

std::string NameOf(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent != nullptr ? absl::StrCat(NameOf(*parent), " ", app.get_name()) : app.get_name();
}

absl::Status CheckNothingLeft(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  std::vector<std::string> left = app.remaining();
  if (chosen.empty()) {
    // CLI11 counts the first "--" as left over.
    const auto mark = std::find(left.begin(), left.end(), "--");
    if (mark != left.end()) left.erase(mark);
  }
  if (left.empty()) return chosen.empty() ? absl::OkStatus() : CheckNothingLeft(*chosen.front());
  const std::string unknown = left.front().substr(0, left.front().find('='));
  std::string message =
      absl::StrFormat("unknown %s %s", unknown.starts_with('-') ? "option" : "argument", unknown);
  const std::string nearest = Nearest(app, unknown);
  if (!chosen.empty()) {
    absl::StrAppend(&message, " before the command ", chosen.front()->get_name(),
                    "; what is for the command comes after its name");
  } else if (!nearest.empty()) {
    absl::StrAppend(&message, "; did you mean ", nearest, "?");
  } else {
    absl::StrAppend(&message, "; ", NameOf(app), " --help lists what there is");
  }
  return UsageError(message);
}

}  // namespace spillway::command
