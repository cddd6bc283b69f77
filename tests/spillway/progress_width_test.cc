// SPDX-License-Identifier: Apache-2.0
//
// Tests that a line of progress stays on one line of a narrow terminal. A line that wraps could not
// be cleared.

#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "tools/spillway/command/progress.h"

namespace spillway::command {
namespace {

// Makes stderr a terminal of so many columns while the object exists.
class NarrowTerminal {
 public:
  explicit NarrowTerminal(unsigned short columns) : before_(dup(STDERR_FILENO)) {
    setenv("TERM", "xterm", /*overwrite=*/1);
    const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    int end = -1;
    if (openpty(&reader_, &end, nullptr, nullptr, &size) != 0) return;
    is_open_ = dup2(end, STDERR_FILENO) >= 0;
    close(end);
  }
  NarrowTerminal(const NarrowTerminal&) = delete;
  NarrowTerminal& operator=(const NarrowTerminal&) = delete;
  ~NarrowTerminal() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    if (reader_ >= 0) close(reader_);
  }

  bool is_open() const { return is_open_; }
  // Returns what was written so far. REQUIRES: something was.
  std::string Read() const {
    std::string text(1024, '\0');
    const ssize_t size = read(reader_, text.data(), text.size());
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return text;
  }

 private:
  const int before_;
  int reader_ = -1;
  bool is_open_ = false;
};

std::string ProgressOn(const NarrowTerminal& terminal) {
  Progress progress("evaluated");
  usleep(210'000);  // a line is drawn every 200 ms at most
  progress.ShowCount(3, 8, "windows");
  return terminal.Read();
}

TEST(ProgressWidth, ALineIsCutToTheTerminal) {
  const NarrowTerminal terminal(20);
  if (!terminal.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  EXPECT_EQ(ProgressOn(terminal), "\r\033[Kevaluated 3 of 8 wi");
}

TEST(ProgressWidth, ALineThatFitsIsWhole) {
  const NarrowTerminal terminal(31);
  if (!terminal.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  EXPECT_EQ(ProgressOn(terminal), "\r\033[Kevaluated 3 of 8 windows (38%)");
}

TEST(ProgressWidth, OfATerminalThatDoesNotTellItIs80) {
  const NarrowTerminal terminal(0);
  if (!terminal.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  EXPECT_EQ(CutToTerminal(std::string(100, 'x')), std::string(79, 'x'));
}

}  // namespace
}  // namespace spillway::command
