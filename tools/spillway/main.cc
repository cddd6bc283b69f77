// SPDX-License-Identifier: Apache-2.0
//
// The `spillway` command: parses the command line, runs one subcommand, turns its status into an
// exit code. Data goes to stdout, talk to stderr.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "spillway/version.h"
#include "tools/spillway/arguments.h"
#include "tools/spillway/commands.h"
#include "tools/spillway/exit_code.h"

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
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot, 4 data is corrupt, 130\n"
    "interrupted.\n";

// Lists a subcommand by the first line of its description; its own help shows the whole.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_subcommand(const CLI::App* sub) const override {
    const std::string description = sub->get_description();
    return absl::StrFormat("  %-12s%s\n", sub->get_name(),
                           description.substr(0, description.find('\n')));
  }
};

// CLI11's words for a count of values that is off, in ours.
std::string Explain(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string option = text.substr(0, text.find(':'));
  if (error.get_name() != "ArgumentMismatch") return text;
  if (text.find("At Most") != std::string::npos) return option + " is given more than once";
  if (text.find("missing") != std::string::npos) return option + " needs a value";
  return text;
}

// For the app and all below it.
void AllowExtras(CLI::App* app) {
  app->allow_extras();
  for (CLI::App* sub : app->get_subcommands([](CLI::App*) { return true; })) AllowExtras(sub);
}

// "train, eval or generate".
std::string NamesOfSubcommands(const CLI::App& app) {
  std::string names;
  const std::vector<const CLI::App*> subs =
      app.get_subcommands([](const CLI::App*) { return true; });
  for (size_t i = 0; i < subs.size(); ++i) {
    names += (i == 0 ? "" : i + 1 == subs.size() ? " or " : ", ") + subs[i]->get_name();
  }
  return names;
}

// Understands the command line; `*run` stays empty where help or the version was printed.
absl::Status Parse(int argc, char** argv, Run* run) {
  CLI::App app(kDescription, "spillway");
  app.formatter(std::make_shared<HelpFormatter>());
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
  AddBenchCommand(&app, run);
  AddDoctorCommand(&app, run);
  // Left-over arguments are reported below, with what was probably meant.
  AllowExtras(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    *run = {};
    return absl::OkStatus();
  } catch (const CLI::ParseError& error) {
    return UsageError(Explain(error));
  }
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  const absl::Status left = CheckNothingLeft(*chosen);
  if (!left.ok()) return left;
  if (*run) return absl::OkStatus();
  std::fputs(chosen->help().c_str(), stderr);
  return UsageError(chosen == &app
                        ? "a command is needed, such as train; spillway --help lists them"
                        : "a command is needed: " + NamesOfSubcommands(*chosen));
}

absl::Status ParseAndRun(int argc, char** argv) {
  Run run;
  absl::Status status = Parse(argc, argv, &run);
  if (status.ok() && run) status = run();
  if (status.ok() && std::fflush(stdout) != 0) {
    status = absl::UnavailableError("cannot write to stdout");
  }
  return status;
}

// No exception is part of any contract here; what a library throws all the same must not abort the
// process.
absl::Status Guarded(int argc, char** argv) {
  try {
    return ParseAndRun(argc, argv);
  } catch (const std::bad_alloc&) {
    return absl::InternalError("out of memory: use a smaller --seq or --batch, or smaller budgets");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// A standard stream that the caller closed stays unusable, so that no file takes its number and
// becomes the place where the talk goes.
void KeepStandardStreamsFree() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Takes the lowest number that is free, which is `fd`; the other direction than its use.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace
}  // namespace spillway::command

int main(int argc, char** argv) {
  spillway::command::KeepStandardStreamsFree();
  const absl::Status status = spillway::command::Guarded(argc, argv);
  if (!status.ok()) absl::FPrintF(stderr, "spillway: %s\n", std::string(status.message()));
  return static_cast<int>(spillway::command::ExitCodeOf(status));
}
