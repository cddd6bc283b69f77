// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io`: measures how fast bytes move between memory and a folder's device, and
// compares the rates with fio's.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/types.h"
#include "spillway/version.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/bench_session.h"
#include "tools/spillway/bench/io/bench.h"
#include "tools/spillway/bench/io/ceiling.h"
#include "tools/spillway/bench/io/report.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/named_output.h"
#include "tools/spillway/command/real_path.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Measure a folder's device: read, write and mixed, beside fio.\n"
    "\n"
    "Examples:\n"
    "  spillway bench io /nvme0\n"
    "  spillway bench io /nvme0,/nvme1 --json --html io.html\n"
    "  spillway bench io /nvme0 --full --size 16GiB --memory 8GiB\n"
    "  spillway bench io /nvme0 --ceiling   how many drives can this machine feed?\n"
    "\n"
    "Writes files of 2 x --size, measures through the page store (checksums on) and on a bare "
    "file,\n"
    "and removes them again, also when interrupted. A tenth of the free space stays free.\n";

struct Flags {
  std::vector<std::string> folders;
  bench_io::BenchOptions bench;
  bool ceiling = false;
  bool json = false;
  bool no_fio = false;
  std::string html;
  bool force = false;
};

constexpr trainer::OutputFile::Kind kPage = {"a page of spillway bench io", "<!doctype html>",
                                             "<title>spillway bench io</title>"};

absl::Status Check(const Flags& flags) {
  if (flags.bench.size_bytes == kUnlimited || flags.bench.memory_bytes == kUnlimited) {
    return UsageError("--size and --memory need a size, not 'unlimited'");
  }
  if (flags.bench.size_bytes < (uint64_t{64} << 20)) {
    return UsageError("--size must be at least 64 MiB");
  }
  if (flags.bench.memory_bytes < (uint64_t{64} << 20)) {
    return UsageError("--memory must be at least 64 MiB");
  }
  SPILLWAY_RETURN_IF_ERROR(CheckNamedOnce(flags.folders));
  for (const std::string& folder : flags.folders) {
    if (folder.find(':') != std::string::npos) {
      return UsageError(absl::StrCat("'", folder, "': a folder's name with a colon"));
    }
  }
  return absl::OkStatus();
}

// Runs the store over an I/O engine that moves nothing.
absl::Status RunBenchCeiling(const Flags& flags) {
  if (flags.folders.size() != 1) return UsageError("--ceiling takes one folder");
  const bench_io::CeilingOptions options = {.folder = flags.folders.front(),
                                            .memory_bytes = flags.bench.memory_bytes};
  const absl::StatusOr<bench_io::CeilingReport> report = RunSession(options, bench_io::RunCeiling);
  if (absl::IsFailedPrecondition(report.status()))
    return WithExitCode(report.status(), ExitCode::kFailed);
  if (!report.ok()) return report.status();
  PrintReport(*report, flags.json);
  return absl::OkStatus();
}

absl::Status RunBenchIo(Flags flags) {
  SPILLWAY_RETURN_IF_ERROR(Check(flags));
  if (flags.ceiling) return RunBenchCeiling(flags);
  std::optional<trainer::OutputFile> page;  // opened now, so that an error shows before the run
  if (!flags.html.empty()) {
    SPILLWAY_ASSIGN_OR_RETURN(page, OpenOutput("--html", flags.html, kPage, flags.force));
  }
  flags.bench.folders = flags.folders;
  flags.bench.fio = !flags.no_fio;
  SPILLWAY_ASSIGN_OR_RETURN(const bench_io::BenchReport report,
                            RunSession(flags.bench, bench_io::RunBench));
  PrintReport(report, flags.json);
  return page ? page->Replace(bench_io::ToHtml(report, std::string(BuildCommit())))
              : absl::OkStatus();
}

}  // namespace

void AddBenchIoCommand(CLI::App* bench, Run* run) {
  CLI::App* io = AddCommand(bench, "io", kDescription);
  auto flags = std::make_shared<Flags>();
  AddList(io, "dir", &flags->folders, "Folders to measure, striped over: DIR[,DIR]").Required();
  const AddedOption ceiling =
      AddFlag(io, "--ceiling", &flags->ceiling,
              "The store over devices that take no time: GB/s and CPU by hashing threads");
  AddSize(io, "--size", &flags->bench.size_bytes, "Data to move, and as much again for fio's file")
      .Default("2GiB")
      .Excludes(ceiling);
  AddSize(io, "--memory", &flags->bench.memory_bytes,
          "Distinct memory to cycle through; a row may need as much room again on the disk")
      .Default("2GiB");
  AddNumber(
      io, "--seconds", &flags->bench.seconds, {1, 86400},
      "No further round after that, or until three are done after twice that (not with --full)")
      .Excludes(ceiling);
  AddFlag(io, "--full", &flags->bench.full, "Every operation, pattern, block, depth and engine")
      .Excludes(ceiling);
  AddFlag(io, "--verify", &flags->bench.verify,
          "Mark what is written and check what is read; without fio")
      .Excludes(ceiling);
  AddFlag(io, "--no-fio", &flags->no_fio, "Leave fio out").Excludes(ceiling);
  AddFlag(io, "--json", &flags->json, "JSON on stdout");
  AddText(io, "--html", &flags->html, "Also write a page with a picture to this file")
      .Excludes(ceiling);
  AddFlag(io, "--force", &flags->force, "Replace what --html names even if it is no such page")
      .Excludes(ceiling);
  WhenChosen(io, [flags, run] { *run = [flags] { return RunBenchIo(*flags); }; });
}

}  // namespace spillway::command
