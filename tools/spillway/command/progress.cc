// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "src/base/bytes.h"

namespace spillway::command {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kOnTerminal{200};
constexpr milliseconds kElsewhere{10'000};

}  // namespace

bool IsTerminal(int fd) {
  const char* const kind = std::getenv("TERM");
  return isatty(fd) != 0 && (kind == nullptr || std::string_view(kind) != "dumb");
}

Progress::Progress(std::string verb)
    : verb_(std::move(verb)),
      on_terminal_(IsTerminal(STDERR_FILENO)),
      next_(Clock::now() + (on_terminal_ ? kOnTerminal : kElsewhere)) {}

void Progress::Show(uint64_t done_bytes, uint64_t total_bytes) {
  if (!IsTime()) return;
  const uint64_t total = std::max(total_bytes, done_bytes);
  Draw(absl::StrFormat("%s of %s", base::FormatBytes(done_bytes), base::FormatBytes(total)),
       done_bytes, total);
}

void Progress::ShowCount(uint64_t done, uint64_t total, std::string_view noun) {
  if (!IsTime()) return;
  Draw(absl::StrFormat("%d of %d %s", done, total, std::string(noun)), done, total);
}

std::string CutToTerminal(std::string text) {
  constexpr size_t kUsualColumns = 80;
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const size_t columns = is_known ? size.ws_col : kUsualColumns;
  if (text.size() >= columns) text.resize(columns - 1);
  return text;
}

void Progress::Draw(const std::string& done_of_total, uint64_t done, uint64_t total) {
  next_ = Clock::now() + (on_terminal_ ? kOnTerminal : kElsewhere);
  const double share =
      static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(total, 1));
  const std::string text = absl::StrFormat("%s %s (%.0f%%)", verb_, done_of_total, 100 * share);
  absl::FPrintF(stderr, "%s%s%s", on_terminal_ ? "\r\033[K" : "",
                on_terminal_ ? CutToTerminal(text) : text, on_terminal_ ? "" : "\n");
  std::fflush(stderr);
  shown_ = true;
}

void Progress::End() {
  if (on_terminal_ && shown_) absl::FPrintF(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace spillway::command
