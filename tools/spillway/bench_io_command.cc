// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench io`: how fast bytes move between memory and a folder's device, beside fio.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spillway/types.h"
#include "spillway/version.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "tools/spillway/arguments.h"
#include "tools/spillway/bench_io/bench.h"
#include "tools/spillway/bench_io/report.h"
#include "tools/spillway/commands.h"
#include "tools/spillway/exit_code.h"
#include "tools/spillway/interrupt.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Measure a folder's device: read, write and mixed, beside fio.\n"
    "\n"
    "Examples:\n"
    "  spillway bench io /nvme0\n"
    "  spillway bench io /nvme0,/nvme1 --json --html io.html\n"
    "  spillway bench io /nvme0 --full --size 16GiB --memory 8GiB\n"
    "\n"
    "Writes files of 2 x --size, measures through the page store (checksums on) and on a bare "
    "file,\n"
    "and removes them again, also when interrupted. A tenth of the free space stays free.\n";

struct Flags {
  std::vector<std::string> folders;
  bench_io::BenchOptions bench;
  bool json = false;
  bool no_fio = false;
  std::string html;
};

// What is on disk as long as the bench runs.
class MadeFolders {
 public:
  void Add(const std::string& folder) {
    base::MutexLock lock(&mutex_);
    folders_.push_back(folder);
  }
  // Beside a bench that goes on: what it makes meanwhile is removed in the next round.
  void Remove() {
    base::MutexLock lock(&mutex_);
    for (const std::string& folder : folders_) {
      std::error_code error;
      for (int round = 0; round < 100; ++round) {
        std::filesystem::remove_all(folder, error);
        if (!std::filesystem::exists(folder, error)) break;
      }
    }
  }

 private:
  base::Mutex mutex_;
  std::vector<std::string> folders_ ABSL_GUARDED_BY(mutex_);
};

// A line on a terminal that is written over; elsewhere one every ten seconds.
class Progress {
 public:
  Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() { Clear(); }
  void Show(int done, int all, const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ && now - shown_ < std::chrono::seconds(10)) return;
    shown_ = now;
    const std::string text =
        all == 0 ? what
                 : absl::StrCat("[", done, done < all ? absl::StrCat("/", all) : "", "] ", what);
    absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", text, terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  void Clear() {
    if (terminal_) absl::FPrintF(stderr, "\r\033[K");
  }

 private:
  const bool terminal_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

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
  for (const std::string& folder : flags.folders) {
    if (folder.find(':') != std::string::npos) {
      return UsageError(absl::StrCat("'", folder, "': a folder's name with a colon"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunBenchIo(Flags flags) {
  SPILLWAY_RETURN_IF_ERROR(Check(flags));
  if (!flags.html.empty()) {
    SPILLWAY_RETURN_IF_ERROR(WriteText(flags.html, ""));  // found out now, not after a minute
  }
  const std::atomic<bool>& interrupted = CatchInterrupts();
  const auto made = std::make_shared<MadeFolders>();
  TidyOnSecondInterrupt([made] { made->Remove(); });
  flags.bench.made = [made](const std::string& folder) { made->Add(folder); };
  Progress progress;
  flags.bench.folders = flags.folders;
  flags.bench.fio = !flags.no_fio;
  flags.bench.progress = [&](int done, int all, std::string_view what) {
    progress.Show(done, all, std::string(what));
  };
  flags.bench.note = [&](std::string_view text) {
    progress.Clear();
    absl::FPrintF(stderr, "%s\n", std::string(text));
  };
  absl::StatusOr<bench_io::BenchReport> report = bench_io::RunBench(flags.bench, interrupted);
  progress.Clear();
  if (absl::IsResourceExhausted(report.status())) {
    return WithExitCode(report.status(), ExitCode::kFailed);
  }
  if (!report.ok()) return report.status();
  const std::string commit(BuildCommit());
  if (!flags.html.empty()) {
    SPILLWAY_RETURN_IF_ERROR(WriteText(flags.html, bench_io::ToHtml(*report, commit)));
  }
  const std::string text = flags.json ? bench_io::ToJson(*report, commit).dump(2) + "\n"
                                      : bench_io::ToTable(*report, commit);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommand(CLI::App* app, Run* run) {
  CLI::App* bench = app->add_subcommand("bench", "Measure this machine: 'bench io' its disks.");
  CLI::App* io = bench->add_subcommand("io", kDescription);
  auto flags = std::make_shared<Flags>();
  AddList(io, "dir", &flags->folders, "Folders to measure, striped over: DIR[,DIR]")->required();
  AddSize(io, "--size", &flags->bench.size_bytes, "Data to move, and as much again for fio's file");
  AddSize(io, "--memory", &flags->bench.memory_bytes, "Distinct memory to cycle through");
  AddNumber(io, "--seconds", &flags->bench.seconds, {1, 86400},
            "No further round after that (not with --full)");
  io->add_flag("--full", flags->bench.full, "Every operation, pattern, block, depth and engine");
  io->add_flag("--verify", flags->bench.verify,
               "Mark what is written and check what is read; without fio");
  io->add_flag("--no-fio", flags->no_fio, "Leave fio out");
  io->add_flag("--json", flags->json, "JSON on stdout");
  AddText(io, "--html", &flags->html, "Also write a page with a picture to this file");
  io->callback([flags, run] { *run = [flags] { return RunBenchIo(*flags); }; });
}

}  // namespace spillway::command
