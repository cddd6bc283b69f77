// SPDX-License-Identifier: Apache-2.0
//
// `spillway completion` and `spillway man`: print the help as a shell's completion script and as
// man pages.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "spillway/version.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/help_formats.h"

namespace spillway::command {
namespace {

constexpr char kCompletion[] =
    "Print a script that completes commands and flags in bash or zsh.\n"
    "\n"
    "Examples:\n"
    "  source <(spillway completion bash)\n"
    "  spillway completion bash > /usr/share/bash-completion/completions/spillway\n"
    "  source <(spillway completion zsh)\n";

constexpr char kMan[] =
    "Print the manual page of spillway, or of a command.\n"
    "\n"
    "Examples:\n"
    "  spillway man | man -l -\n"
    "  spillway man spillway-bench-io > spillway-bench-io.1\n"
    "  spillway man --list     # the names of all pages, a line each\n";

}  // namespace

// The text is made while the command line is parsed: the app, with the flags that the text lists,
// is gone when `*run` is called.
void AddCompletionCommand(CLI::App* app, Run* run) {
  CLI::App* const completion = app->add_subcommand("completion", kCompletion);
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "The shell")->type_name("bash|zsh");
  completion->callback([=] {
    const std::string text = *shell == "bash"  ? BashCompletion(*app)
                             : *shell == "zsh" ? ZshCompletion(*app)
                                               : "";
    *run = [text]() -> absl::Status {
      if (text.empty()) return UsageError("a shell is needed: bash or zsh");
      std::fputs(text.c_str(), stdout);
      return absl::OkStatus();
    };
  });
}

void AddManCommand(CLI::App* app, Run* run) {
  CLI::App* const man = app->add_subcommand("man", kMan);
  const auto name = std::make_shared<std::string>("spillway");
  man->add_option("PAGE", *name, "spillway, or of a command spillway-train")->type_name("");
  const auto list = std::make_shared<bool>(false);
  man->add_flag("--list", *list, "Print the names of all pages");
  man->callback([=] {
    if (*list) {
      const std::string names = absl::StrJoin(ManPageNames(*app), "\n") + "\n";
      *run = [names]() -> absl::Status {
        std::fputs(names.c_str(), stdout);
        return absl::OkStatus();
      };
      return;
    }
    const std::vector<std::string> words = absl::StrSplit(*name, '-');
    const CLI::App* of = words.front() == "spillway" ? app : nullptr;
    for (size_t i = 1; of != nullptr && i < words.size(); ++i) {
      const auto subs =
          of->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == words[i]; });
      of = subs.empty() ? nullptr : subs.front();
    }
    const std::string page = of == nullptr ? "" : ManPage(*of, std::string(Version()));
    *run = [page, name = *name]() -> absl::Status {
      if (page.empty()) {
        return UsageError("there is no page '" + name +
                          "'; of spillway train it is spillway-train");
      }
      std::fputs(page.c_str(), stdout);
      return absl::OkStatus();
    };
  });
}

}  // namespace spillway::command
