// SPDX-License-Identifier: Apache-2.0
//
// How far a benchmark is, on stderr.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_PROGRESS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_PROGRESS_H_

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace spillway::command {

// A line on a terminal that is written over; elsewhere one every ten seconds.
class BenchProgress {
 public:
  BenchProgress() : terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~BenchProgress() { Clear(); }
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

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_BENCH_PROGRESS_H_
