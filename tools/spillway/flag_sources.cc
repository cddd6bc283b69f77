// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/flag_sources.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"
#include "tools/spillway/arguments.h"
#include "tools/spillway/exit_code.h"

namespace spillway::command {
namespace {

constexpr uintmax_t kMostFileBytes = uintmax_t{1} << 20;

// What a run is told each time, and no file or environment may say for all of them.
const std::set<std::string>& OnlyOnTheCommandLine() {
  static const auto* const names =
      new std::set<std::string>{"--help", "--config", "--print-config", "--force", "--resume"};
  return *names;
}

bool MayComeFromElsewhere(const CLI::Option& option) {
  return !option.get_positional() && !option.get_lnames().empty() &&
         !OnlyOnTheCommandLine().contains(option.get_name());
}

bool IsSwitch(const CLI::Option& option) { return option.get_expected_max() == 0; }

// "--device-bytes" is "SPILLWAY_DEVICE_BYTES".
std::string VariableOf(const CLI::Option& option) {
  std::string name = absl::StrCat("SPILLWAY_", option.get_lnames().front());
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// The value behind --name in the words, as --name VALUE or --name=VALUE; null if it is not there.
const std::string* Given(const std::vector<std::string>& words, const std::string& name,
                         std::string* storage) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == name) return i + 1 < words.size() ? &words[i + 1] : &words[i];
    if (words[i].starts_with(name + "=")) {
      *storage = words[i].substr(name.size() + 1);
      return storage;
    }
  }
  return nullptr;
}

bool IsGiven(const std::vector<std::string>& words, const std::string& name) {
  std::string unused;
  return Given(words, name, &unused) != nullptr;
}

// As TOML writes it: a number or a word of TOML's as it is, all else quoted.
std::string Quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

// A switch that is off is left out of the command line; anything else is its value.
absl::StatusOr<std::vector<std::string>> WordsFor(const CLI::Option& option,
                                                  const std::vector<std::string>& values,
                                                  const std::string& source) {
  const std::string name = option.get_name();
  if (!IsSwitch(option)) {
    return std::vector<std::string>{absl::StrCat(name, "=", absl::StrJoin(values, ","))};
  }
  const std::string value = values.empty() ? "" : values.front();
  if (value == "true" || value == "1") return std::vector<std::string>{name};
  if (value == "false" || value == "0") return std::vector<std::string>{};
  return UsageError(absl::StrFormat("%s: '%s' is neither true nor false, %s", name, value, source));
}

}  // namespace

void FlagSources::Offer(CLI::App* command) {
  command->add_option("--config", "Flags from this TOML file, as --print-config writes it")
      ->type_name("FILE");
  command->add_flag_callback(
      "--print-config", [] {},
      "Print all flags as such a file, and where each came from, and do nothing. "
      "Flags come from the command line, else from the environment (SPILLWAY_SEQ for "
      "--seq), else from --config, else they are defaults");
  offered_.push_back(command);
}

absl::StatusOr<std::vector<std::string>> FlagSources::Complete(const CLI::App& app,
                                                               std::vector<std::string> words) {
  if (words.empty()) return words;
  const auto offered = std::find_if(offered_.begin(), offered_.end(), [&](const CLI::App* each) {
    return each->get_parent() == &app && each->get_name() == words.front();
  });
  if (offered == offered_.end()) return words;
  const CLI::App& command = **offered;
  std::string storage;
  std::map<std::string, std::vector<std::string>> file;
  const std::string* const path = Given(words, "--config", &storage);
  const std::string from_file = path == nullptr ? "" : absl::StrCat("from ", *path);
  if (path != nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(file, ReadFile(command, *path));
  }
  const std::vector<std::string> given = words;
  for (const CLI::Option* const option : command.get_options()) {
    const std::string name = option->get_name();
    if (!MayComeFromElsewhere(*option) || IsGiven(given, name)) continue;
    const std::string variable = VariableOf(*option);
    std::vector<std::string> more;
    if (const char* const value = std::getenv(variable.c_str()); value != nullptr && *value != 0) {
      source_[name] = absl::StrCat("from the environment's ", variable);
      SPILLWAY_ASSIGN_OR_RETURN(more, WordsFor(*option, {value}, source_[name]));
    } else if (const auto found = file.find(name); found != file.end()) {
      source_[name] = from_file;
      SPILLWAY_ASSIGN_OR_RETURN(more, WordsFor(*option, found->second, from_file));
    }
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

absl::StatusOr<std::map<std::string, std::vector<std::string>>> FlagSources::ReadFile(
    const CLI::App& command, const std::string& path) const {
  std::error_code error;
  // A pipe or a device may never end.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return UsageError(absl::StrCat("--config ", path, " is no file"));
  }
  errno = 0;
  std::ifstream in(path);
  if (!in) {
    return UsageError(absl::StrCat("--config ", path, " cannot be read: ", std::strerror(errno)));
  }
  if (std::filesystem::file_size(path, error) > kMostFileBytes || error) {
    return UsageError(absl::StrCat("--config ", path, " is no file of at most 1 MiB"));
  }
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(in);
  } catch (const CLI::Error& parse_error) {
    return UsageError(absl::StrCat("--config ", path, ": ", parse_error.what()));
  }
  std::map<std::string, std::vector<std::string>> file;
  for (const CLI::ConfigItem& item : items) {
    const std::string name = absl::StrCat("--", item.name);
    if (!item.parents.empty()) {
      return UsageError(absl::StrFormat("--config %s: '%s' is a section; a flag stands in none",
                                        path, absl::StrJoin(item.parents, ".")));
    }
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option == nullptr || !MayComeFromElsewhere(*option)) {
      const std::string near = Nearest(command, name);
      return UsageError(absl::StrFormat(
          "--config %s: '%s' is no flag of spillway %s that a file may have%s", path,
          item.fullname(), command.get_name(),
          near.empty() ? "" : absl::StrCat("; did you mean ", near.substr(2), "?")));
    }
    if (!file.emplace(name, item.inputs).second) {
      return UsageError(absl::StrFormat("--config %s has '%s' twice", path, item.name));
    }
  }
  return file;
}

std::string FlagSources::Explain(const std::string& message) const {
  const auto found = source_.find(message.substr(0, message.find_first_of(": ")));
  return found == source_.end() ? "" : absl::StrCat(", ", found->second);
}

bool FlagSources::wants_print(const CLI::App& command) const {
  const CLI::Option* const print = command.get_option_no_throw("--print-config");
  return print != nullptr && print->count() > 0;
}

std::string FlagSources::Print(const CLI::App& command) const {
  std::string text = absl::StrFormat("# spillway %s --config FILE\n", command.get_name());
  for (const CLI::Option* const option : command.get_options()) {
    if (!MayComeFromElsewhere(*option)) continue;
    const std::string& name = option->get_lnames().front();
    const bool is_given = option->count() > 0;
    std::string value;
    if (IsSwitch(*option)) {
      value = is_given ? "true" : "false";
    } else if (is_given) {
      value = Quoted(absl::StrJoin(option->results(), ","));
    } else if (!option->get_default_str().empty()) {
      value = Quoted(option->get_default_str());
    }
    const auto found = source_.find(option->get_name());
    const std::string source = !is_given                ? "default"
                               : found != source_.end() ? found->second
                                                        : "from the command line";
    // What has neither value nor default stays a comment.
    absl::StrAppend(
        &text,
        value.empty() ? absl::StrFormat("# %s =", name) : absl::StrFormat("%s = %s", name, value),
        "  # ", value.empty() ? "not given" : source, "\n");
  }
  return text;
}

}  // namespace spillway::command
