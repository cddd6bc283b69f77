// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/command_line.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "spillway/version.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/flag_sources.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Train models larger than the memory they train in.\n"
    "\n"
    "Examples:\n"
    "  spillway train --model smollm2 --data kjv --store run --steps 400 \\\n"
    "      --device-bytes 48MiB --pinned-bytes 96MiB\n"
    "  spillway eval --model smollm2 --data kjv --seq 256 --batches 8\n"
    "  spillway generate --model tuned --tokens 504,1089,253\n"
    "  spillway report log.jsonl trace.json --out report.html\n"
    "  spillway bench io /nvme0\n"
    "  spillway inspect run\n"
    "  spillway snapshot create run before-sft\n"
    "  spillway doctor /mnt/nvme0\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot, 4 a store is corrupt, "
    "130\n"
    "interrupted.\n";

// Lists a subcommand by the first line of its description. The subcommand's own help shows all of
// it.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string description = sub->get_description();
    return absl::StrFormat("  %-12s%s\n", sub->get_name(),
                           description.substr(0, description.find('\n')));
  }
};

// Rewords CLI11's message about a wrong number of values. Returns other messages unchanged.
std::string Explain(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string option = text.substr(0, text.find(':'));
  if (error.get_name() != "ArgumentMismatch") return text;
  if (text.find("At Most") != std::string::npos) return option + " is given more than once";
  if (text.find("missing") != std::string::npos) return option + " needs a value";
  return text;
}

// Allows extra arguments for the app and all commands below it.
void AllowExtras(CLI::App* app) {
  app->allow_extras();
  for (CLI::App* sub : app->get_subcommands([](CLI::App*) { return true; })) AllowExtras(sub);
}

// Whether CLI11 reads the word as an option: not "-", nor a negative number.
bool LooksLikeOption(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         !absl::ascii_isdigit(static_cast<unsigned char>(word[1]));
}

// Whether CLI11 reads the word as something other than an argument.
bool IsSpecial(const std::string& word) { return LooksLikeOption(word) || word == "++"; }

// Whether the value of the option that `word` gives is the next word.
bool TakesNextWord(const CLI::App& command, const std::string& word) {
  const size_t equals = word.find('=');
  const CLI::Option* const option = command.get_option_no_throw(word.substr(0, equals));
  if (option == nullptr || option->get_expected_max() == 0) return false;
  return equals == std::string::npos || equals + 1 == word.size();
}

// Returns the subcommand of this name, or null.
const CLI::App* SubcommandOf(const CLI::App& app, const std::string& name) {
  const auto found =
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

// Makes every word after the first "--" an argument of the command. CLI11 gives such words to the
// parent of a command that has an argument already, and reads a word "++" as the end of the
// command. So "--" is left out where no word after it needs it; otherwise the arguments before it
// are moved behind it. UsageError for an argument that no command takes.
absl::StatusOr<std::vector<std::string>> ResolveDoubleDash(const CLI::App& app,
                                                           const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  std::vector<std::string> before;  // the command and its options
  std::vector<std::string> arguments;
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const bool has_commands =
        !command->get_subcommands([](const CLI::App*) { return true; }).empty();
    if (words[i] == "++") return UsageError("unknown argument ++");
    (has_commands || LooksLikeOption(words[i]) ? before : arguments).push_back(words[i]);
    if (LooksLikeOption(words[i])) {
      if (TakesNextWord(*command, words[i]) && i + 1 < words.size()) before.push_back(words[++i]);
    } else if (const CLI::App* const sub = SubcommandOf(*command, words[i])) {
      command = sub;
    }
  }
  if (i == words.size()) return words;
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
  const auto special = std::find_if(first + 1, words.end(), IsSpecial);
  if (special == words.end()) {
    std::vector<std::string> without(words.begin(), first);
    without.insert(without.end(), first + 1, words.end());
    return without;
  }
  const auto is_positional = [](const CLI::Option* option) { return option->get_positional(); };
  if (command->get_options(is_positional).empty()) {
    return UsageError(
        absl::StrFormat("unknown argument %s; after -- nothing is an option", *special));
  }
  before.push_back("--");
  before.insert(before.end(), arguments.begin(), arguments.end());
  before.insert(before.end(), first + 1, words.end());
  return before;
}

// Lists the names of the subcommands: "train, eval or generate".
std::string NamesOfSubcommands(const CLI::App& app) {
  std::string names;
  const std::vector<const CLI::App*> subs =
      app.get_subcommands([](const CLI::App*) { return true; });
  for (size_t i = 0; i < subs.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == subs.size() ? " or " : ", ") + subs[i]->get_name();
  }
  return names;
}

}  // namespace

absl::Status ParseCommandLine(const std::vector<std::string>& given, Run* run) {
  CLI::App app(kDescription, "spillway");
  app.formatter(std::make_shared<HelpFormatter>());
  // Commands inherit this. Without it, CLI11 takes an argument that equals the name of a command
  // for that command.
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", absl::StrFormat("spillway %s (%s)", std::string(Version()),
                                                    std::string(BuildCommit())));
  AddTrainCommand(&app, run);
  AddReportCommand(&app, run);
  AddEvalCommand(&app, run);
  AddGenerateCommand(&app, run);
  AddInspectCommand(&app, run);
  AddFsckCommand(&app, run);
  AddSnapshotCommand(&app, run);
  AddTrimCommand(&app, run);
  AddRemoveCommand(&app, run);
  AddPlanCommand(&app, run);
  AddSimulateCommand(&app, run);
  AddCapacityCommand(&app, run);
  AddBenchCommand(&app, run);
  AddDoctorCommand(&app, run);
  AddCompletionCommand(&app, run);
  AddManCommand(&app, run);
  FlagSources sources;
  for (const char* name : {"train", "eval", "generate"}) sources.Offer(app.get_subcommand(name));
  for (const char* name : {"plan", "simulate", "capacity"})
    sources.Offer(app.get_subcommand(name), app.get_subcommand("train"));
  // Arguments that are left over are reported below, with what was probably meant.
  AllowExtras(&app);
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<std::string> words, ResolveDoubleDash(app, given));
  SPILLWAY_ASSIGN_OR_RETURN(words, sources.Complete(app, std::move(words)));
  for (const std::string& warning : sources.warnings()) {
    absl::FPrintF(stderr, "warning: %s\n", warning);
  }
  std::reverse(words.begin(), words.end());  // CLI11 takes them last to first
  try {
    app.parse(words);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    *run = {};
    return absl::OkStatus();
  } catch (const CLI::ParseError& error) {
    return UsageError(sources.Explain(Explain(error)));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckNothingLeft(app));
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  if (sources.wants_print(*chosen)) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string text, sources.Print(*chosen));
    std::fputs(text.c_str(), stdout);
    *run = {};
    return absl::OkStatus();
  }
  if (*run) {
    *run = sources.Explained(*std::move(run));
    return absl::OkStatus();
  }
  std::fputs(chosen->help(chosen == &app ? "" : "spillway").c_str(), stderr);
  return UsageError(chosen == &app
                        ? "a command is needed, such as train; spillway --help lists them"
                        : "a command is needed: " + NamesOfSubcommands(*chosen));
}

}  // namespace spillway::command
