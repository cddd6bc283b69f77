// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/flag_sources.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/config_file.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 20;
constexpr std::string_view kPrefix = "SPILLWAY_";
// Bound on the bytes of a name in a message.
constexpr int kMostNameBytes = 60;

// Flags that must be given for each run. No file or environment may set them for all runs.
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

// Whether a switch is given and is not set to false, as by --json=false.
bool IsOn(const CLI::Option& option) { return option.count() > 0 && option.as<bool>(); }

// Returns the environment variable of a flag: "SPILLWAY_DEVICE_BYTES" for "--device-bytes".
std::string VariableOf(const CLI::Option& option) {
  std::string name =
      absl::StrCat(absl::string_view(kPrefix.data(), kPrefix.size()), option.get_lnames().front());
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// Whether the flag takes a list: --betas takes A,B, --store a LIST.
bool TakesList(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type == "LIST" || type.find(',') != std::string::npos;
}

// Returns the path as a message or a comment shows it: on one line and in UTF-8.
std::string Readable(const std::string& path) {
  const bool is_text = QuoteForConfig(path).ok();
  return is_text ? absl::Utf8SafeCHexEscape(path) : absl::CHexEscape(path);
}

// Returns the flags on a command line with their values, split as CLI11 does it: --seq 3, --seq=3.
// The first word is the command's name.
std::map<std::string, std::string> FlagsIn(const CLI::App& command,
                                           const std::vector<std::string>& words) {
  std::map<std::string, std::string> flags;
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const size_t equals = words[i].find('=');
    const CLI::Option* const option = command.get_option_no_throw(words[i].substr(0, equals));
    if (!words[i].starts_with('-') || option == nullptr) continue;
    std::string value = equals == std::string::npos ? "" : words[i].substr(equals + 1);
    // "--seq=" takes the next word as well.
    if (value.empty() && !IsSwitch(*option) && i + 1 < words.size()) value = words[++i];
    flags.emplace(option->get_name(), value);
  }
  return flags;
}

// Returns the words that give the flag this value.
absl::StatusOr<std::vector<std::string>> WordsFor(const CLI::Option& option,
                                                  const std::string& value,
                                                  const std::string& source) {
  const std::string name = option.get_name();
  if (!IsSwitch(option)) {
    // CLI11 reads "--seq=" as a flag whose value is the next word.
    if (value.empty()) return std::vector<std::string>{name, ""};
    return std::vector<std::string>{absl::StrCat(name, "=", value)};
  }
  if (value == "true" || value == "1") return std::vector<std::string>{name + "=true"};
  if (value == "false" || value == "0") return std::vector<std::string>{name + "=false"};
  return UsageError(absl::StrFormat("%s: '%s' is neither true nor false, %s", name, value, source));
}

// Reads all of a regular file of at most 1 MiB.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::error_code error;
  // A pipe or a device may never end.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(" is no file");
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::InvalidArgumentError(absl::StrCat(" cannot be read: ", std::strerror(errno)));
  }
  std::string text(kMostFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return absl::InvalidArgumentError(" cannot be read");
  if (text.size() > kMostFileBytes) {
    return absl::InvalidArgumentError(" is no file of at most 1 MiB");
  }
  return text;
}

// Returns the flag that an entry of the file sets.
absl::StatusOr<const CLI::Option*> FlagOf(const CLI::App& command, const ConfigEntry& entry) {
  const std::string name = "--" + entry.key;
  const CLI::Option* const option = command.get_option_no_throw(name);
  if (option != nullptr && MayComeFromElsewhere(*option)) return option;
  if (option != nullptr && OnlyOnTheCommandLine().contains(name)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' counts only on the command line, not for each run that reads a file; leave it out",
        entry.key));
  }
  const std::string near = Nearest(command, name.substr(0, kMostNameBytes));
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%.*s' is no flag of spillway %s%s", int{kMostNameBytes}, entry.key, command.get_name(),
      near.empty() ? "" : absl::StrCat("; did you mean ", near.substr(2), "?")));
}

// Returns the entry's value as it would follow the flag on a command line.
absl::StatusOr<std::string> ValueOf(const CLI::Option& option, const ConfigEntry& entry) {
  if (!entry.is_array) return entry.values.front();
  if (!TakesList(option)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' takes one value; [A, B] is for a flag of a list", entry.key));
  }
  for (const std::string& value : entry.values) {
    if (value.find(',') == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' has a comma inside a value of its array, where a comma ends the value", entry.key));
  }
  return absl::StrJoin(entry.values, ",");
}

// Whether the entry sets a flag that `other` alone has.
bool IsOfOther(const CLI::App& command, const CLI::App* other, const ConfigEntry& entry) {
  const std::string name = "--" + entry.key;
  if (other == nullptr || command.get_option_no_throw(name) != nullptr) return false;
  const CLI::Option* const option = other->get_option_no_throw(name);
  return option != nullptr && MayComeFromElsewhere(*option);
}

// Returns the values of a file's flags by name, "--seq".
absl::StatusOr<std::map<std::string, std::string>> ReadConfig(const CLI::App& command,
                                                              const CLI::App* other,
                                                              const std::string& path) {
  const std::string about = absl::StrCat("--config ", Readable(path));
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return UsageError(absl::StrCat(about, text.status().message()));
  const absl::StatusOr<std::vector<ConfigEntry>> entries = ParseConfig(*text);
  if (!entries.ok()) return UsageError(absl::StrCat(about, " ", entries.status().message()));
  std::map<std::string, std::string> file;
  for (const ConfigEntry& entry : *entries) {
    if (IsOfOther(command, other, entry)) continue;
    absl::StatusOr<const CLI::Option*> option = FlagOf(command, entry);
    const absl::StatusOr<std::string> value =
        option.ok() ? ValueOf(**option, entry) : option.status();
    if (!value.ok()) {
      return UsageError(absl::StrFormat("%s line %d: %s", about, entry.line,
                                        std::string(value.status().message())));
    }
    file[(*option)->get_name()] = *value;
  }
  return file;
}

// Flag values by name, "--seq".
using Values = std::map<std::string, std::string>;

// Returns the values that the environment gives the command's flags.
Values ReadEnvironment(const CLI::App& command) {
  Values values;
  for (const CLI::Option* const option : command.get_options()) {
    if (!MayComeFromElsewhere(*option)) continue;
    const char* const value = std::getenv(VariableOf(*option).c_str());
    if (value != nullptr && *value != 0) values[option->get_name()] = value;
  }
  return values;
}

// Two flags that say the same thing, so that one source gives at most one of them.
struct Alternatives {
  std::string_view flag;
  std::string_view list;   // the other flag
  std::string_view entry;  // how the entries of `list` begin that say it; "": all of it does
};
constexpr Alternatives kAlternatives[] = {{"--tokens", "--tokens-file", ""},
                                          {"--activation-tier", "--place", "activations="}};

// Returns the entries of a list that do not begin with `entry`.
std::string Without(std::string_view entry, const std::string& list) {
  const auto stays = [&](absl::string_view part) {
    return !absl::StartsWith(part, absl::string_view(entry.data(), entry.size()));
  };
  return absl::StrJoin(absl::StrSplit(list, ',', stays), ",");
}

// Returns what a source's value of a flag still says beside the values of the sources before it;
// none if nothing.
std::optional<std::string> BesideEarlier(const std::string& name, std::string value,
                                         const Values& earlier) {
  if (earlier.contains(name)) return std::nullopt;
  for (const auto& [flag, list, entry] : kAlternatives) {
    if (name == flag) {
      const auto found = earlier.find(std::string(list));
      if (found != earlier.end() && Without(entry, found->second) != found->second)
        return std::nullopt;
    } else if (name == list && earlier.contains(std::string(flag))) {
      value = Without(entry, value);
      if (value.empty()) return std::nullopt;
    }
  }
  return value;
}

using Sources = std::map<std::string, std::string>;

// Returns "; --seq is from run.toml" for each flag that the message names and that has a source.
std::string SourcesIn(const std::string& message, const Sources& sources) {
  constexpr char kOfAName[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
  std::set<std::string> told;
  std::string text;
  for (size_t at = message.find("--"); at != std::string::npos;) {
    const size_t end = std::min(message.find_first_not_of(kOfAName, at), message.size());
    const auto found = sources.find(message.substr(at, end - at));
    if (found != sources.end() && told.insert(found->first).second)
      absl::StrAppend(&text, "; ", found->first, " is ", found->second);
    at = message.find("--", end);
  }
  return text;
}

// Adds the variables of the flags of a command and of the commands below it.
void AddVariables(const CLI::App& app, std::set<std::string>* variables) {
  for (const CLI::Option* const option : app.get_options()) {
    if (!option->get_lnames().empty()) variables->insert(VariableOf(*option));
  }
  for (const CLI::App* const sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    AddVariables(*sub, variables);
  }
}

// Whether the variable is one of this project's tests and checks.
bool IsOfTheTests(std::string_view variable) {
  static const auto* const names = new std::set<std::string_view>{
      "SPILLWAY_COMMAND", "SPILLWAY_COMMAND_UNDER_TEST", "SPILLWAY_EXHAUSTIVE", "SPILLWAY_MUTANT",
      "SPILLWAY_MUTANTS_REACHED"};
  return variable.starts_with("SPILLWAY_TEST_") || names->contains(variable);
}

// Returns the names of the SPILLWAY_* variables that are set and not empty, sorted.
std::set<std::string> SetVariables() {
  std::set<std::string> names;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view variable(*each);
    const size_t equals = variable.find('=');
    const bool is_set = equals != std::string_view::npos && equals + 1 < variable.size();
    if (!variable.starts_with(kPrefix) || !is_set) continue;
    names.emplace(variable.substr(0, equals));
  }
  return names;
}

// Returns a warning for each variable that looks like a flag and changes nothing.
std::vector<std::string> WarningsOf(const CLI::App& app, const CLI::App& command) {
  std::set<std::string> of_any_command;
  AddVariables(app, &of_any_command);
  std::map<std::string, std::string> only_on_the_command_line;
  for (const std::string& flag : OnlyOnTheCommandLine()) {
    const CLI::Option* const option = command.get_option_no_throw(flag);
    if (option != nullptr) only_on_the_command_line[VariableOf(*option)] = flag;
  }
  std::vector<std::string> warnings;
  for (const std::string& variable : SetVariables()) {
    const std::string name = absl::CHexEscape(variable.substr(0, kMostNameBytes));
    if (const auto found = only_on_the_command_line.find(variable);
        found != only_on_the_command_line.end()) {
      warnings.push_back(absl::StrFormat(
          "the environment's %s changes nothing: %s counts only on the command line", name,
          found->second));
    } else if (!of_any_command.contains(variable) && !IsOfTheTests(variable)) {
      std::string flag = absl::AsciiStrToLower(variable.substr(kPrefix.size(), kMostNameBytes));
      std::replace(flag.begin(), flag.end(), '_', '-');
      const std::string near = Nearest(command, "--" + flag);
      const bool is_meant =
          !near.empty() && MayComeFromElsewhere(*command.get_option_no_throw(near));
      warnings.push_back(absl::StrFormat(
          "the environment's %s changes nothing: no command has such a flag%s", name,
          is_meant ? absl::StrCat("; did you mean ", VariableOf(*command.get_option(near)), "?")
                   : ""));
    }
  }
  return warnings;
}

}  // namespace

void FlagSources::Offer(CLI::App* command, const CLI::App* other) {
  const std::string help = absl::StrCat(
      "Flags from this TOML file, as --print-config writes it",
      other == nullptr ? "" : absl::StrCat("; one of ", other->get_name(), " will do"));
  command->add_option("--config")->description(help)->type_name("FILE");
  command->add_flag_callback(
      "--print-config", [] {},
      "Print all flags as such a file, and where each came from, and do nothing. "
      "Flags come from the command line, else from the environment (SPILLWAY_SEQ for "
      "--seq), else from --config, else they are defaults");
  offered_[command] = other;
}

absl::StatusOr<std::vector<std::string>> FlagSources::Complete(const CLI::App& app,
                                                               std::vector<std::string> words) {
  if (words.empty()) return words;
  const auto offered = std::find_if(offered_.begin(), offered_.end(), [&](const auto& each) {
    return each.first->get_parent() == &app && each.first->get_name() == words.front();
  });
  if (offered == offered_.end()) return words;
  const auto& [chosen, other] = *offered;
  const CLI::App& command = *chosen;
  const Values given = FlagsIn(command, words);
  // Help is printed whatever else is wrong with the flags.
  if (given.contains("--help")) return std::vector<std::string>{words.front(), "--help"};
  warnings_ = WarningsOf(app, command);
  Values file;
  std::string from_file;
  if (const auto path = given.find("--config"); path != given.end()) {
    from_file = absl::StrCat("from ", Readable(path->second));
    SPILLWAY_ASSIGN_OR_RETURN(file, ReadConfig(command, other, path->second));
  }
  std::vector<std::string> added;
  Values earlier = given;
  const Values environment = ReadEnvironment(command);
  for (const bool is_file : {false, true}) {
    Values taken;
    for (const auto& [name, value] : is_file ? file : environment) {
      const std::optional<std::string> rest = BesideEarlier(name, value, earlier);
      if (!rest) continue;
      const CLI::Option& option = *command.get_option(name);
      source_[name] =
          is_file ? from_file : absl::StrCat("from the environment's ", VariableOf(option));
      SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> more,
                                WordsFor(option, *rest, source_[name]));
      added.insert(added.end(), more.begin(), more.end());
      taken[name] = *rest;
    }
    earlier.merge(taken);
  }
  // The added words go before the given ones, because the last of those may lack its value or
  // follow "--".
  words.insert(words.begin() + 1, added.begin(), added.end());
  return words;
}

std::string FlagSources::Explain(std::string message) const {
  return message + SourcesIn(message, source_);
}

Run FlagSources::Explained(Run run) const {
  return [run = std::move(run), sources = source_] {
    const absl::Status status = run();
    if (ExitCodeOf(status) != ExitCode::kUsage) return status;
    const std::string message(status.message());
    return WithExitCode(absl::Status(status.code(), message + SourcesIn(message, sources)),
                        ExitCode::kUsage);
  };
}

bool FlagSources::wants_print(const CLI::App& command) const {
  const CLI::Option* const print = command.get_option_no_throw("--print-config");
  return print != nullptr && IsOn(*print);
}

absl::StatusOr<std::string> FlagSources::Print(const CLI::App& command) const {
  std::string text = absl::StrFormat("# spillway %s --config FILE\n", command.get_name());
  for (const CLI::Option* const option : command.get_options()) {
    if (!MayComeFromElsewhere(*option)) continue;
    const std::string& name = option->get_lnames().front();
    const bool is_given = option->count() > 0;
    const std::string value =
        is_given ? absl::StrJoin(option->results(), ",") : option->get_default_str();
    if (!IsSwitch(*option) && value.empty()) {  // written as a comment
      absl::StrAppend(&text, "# ", name, " =  # not given\n");
      continue;
    }
    const absl::StatusOr<std::string> quoted = QuoteForConfig(value);
    if (!quoted.ok()) {
      return UsageError(absl::StrFormat(
          "--print-config cannot write --%s: '%s' is not UTF-8, and a TOML file holds nothing "
          "else; give --%s on the command line of each run",
          name, absl::CHexEscape(value), name));
    }
    const auto found = source_.find(option->get_name());
    const std::string source = !is_given                ? "default"
                               : found != source_.end() ? found->second
                                                        : "from the command line";
    const std::string written = !IsSwitch(*option) ? *quoted : IsOn(*option) ? "true" : "false";
    absl::StrAppend(&text, name, " = ", written, "  # ", source, "\n");
  }
  return text;
}

}  // namespace spillway::command
