// SPDX-License-Identifier: Apache-2.0
//
// The parts that all benchmarks of `spillway bench` share: a line of progress, folders that are
// removed even if the benchmark is interrupted, and the report on stdout.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_SESSION_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_SESSION_H_

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spillway/version.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "tools/spillway/bench/io/own_folder.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/progress.h"

namespace spillway::command {

// Shows progress on stderr: on a terminal one line that is overwritten, elsewhere at most one line
// every ten seconds.
class BenchProgress {
 public:
  BenchProgress() : terminal_(IsTerminal(STDERR_FILENO)) {}
  ~BenchProgress() { Clear(); }
  void Show(int done, int all, const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ && now - shown_ < std::chrono::seconds(10)) return;
    shown_ = now;
    const std::string text =
        all == 0 ? what
                 : absl::StrCat("[", done, done < all ? absl::StrCat("/", all) : "", "] ", what);
    absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "",
                  terminal_ ? CutToTerminal(text) : text, terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  void Clear() {
    if (terminal_) absl::FPrintF(stderr, "\r\033[K");
  }

 private:
  const bool terminal_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

// The folders that exist on disk while the benchmark runs. Thread-safe.
class MadeFolders {
 public:
  // Makes a folder in `parent`. Cancelled if Remove was called before.
  absl::StatusOr<bench_io::OwnFolder> Make(const std::string& parent) {
    base::MutexLock lock(&mutex_);
    if (removed_) return absl::CancelledError("interrupted");
    SPILLWAY_ASSIGN_OR_RETURN(bench_io::OwnFolder folder, bench_io::OwnFolder::Make(parent));
    folders_.push_back(folder.path());
    return folder;
  }
  // Removes the folders while the benchmark still runs. It tries repeatedly, because the benchmark
  // may make files meanwhile.
  void Remove() {
    base::MutexLock lock(&mutex_);
    removed_ = true;
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
  bool removed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> folders_ ABSL_GUARDED_BY(mutex_);
};

// Returns the result of `bench(options, interrupted)`. Ctrl-C interrupts the benchmark, and a
// second Ctrl-C removes its folders. Notes and progress go to stderr. ResourceExhausted gives exit
// code 1, because a lack of room is no error of the command line.
template <typename Options, typename Bench>
auto RunSession(Options options, const Bench& bench) {
  const std::atomic<bool>& interrupted = CatchInterrupts();
  const auto made = std::make_shared<MadeFolders>();
  TidyOnSecondInterrupt([made] { made->Remove(); });
  BenchProgress progress;
  options.make_folder = [made](const std::string& parent) { return made->Make(parent); };
  options.progress = [&progress](int done, int all, std::string_view what) {
    progress.Show(done, all, std::string(what));
  };
  if constexpr (requires { options.note; }) {
    options.note = [&progress](std::string_view text) {
      progress.Clear();
      absl::FPrintF(stderr, "note: %s\n", std::string(text));
    };
  }
  auto report = bench(options, interrupted);
  progress.Clear();
  if (absl::IsResourceExhausted(report.status()))
    report = WithExitCode(report.status(), ExitCode::kFailed);
  return report;
}

template <typename Report>
void PrintReport(const Report& report, bool json) {
  const std::string commit(BuildCommit());
  const std::string text =
      json ? JsonText(ToJson(report, commit), 2) + "\n" : ToTable(report, commit);
  std::fputs(text.c_str(), stdout);
}

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_SESSION_H_
