// SPDX-License-Identifier: Apache-2.0
//
// Shows the progress of long work on stderr: on a terminal as one line that is redrawn, elsewhere
// as a line every ten seconds.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_PROGRESS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::command {

// Whether `fd` is a terminal that can move its cursor and has colours, as far as TERM tells.
bool IsTerminal(int fd);

// Returns the text, cut to fit on a line of the terminal that stderr is, so that it can be redrawn:
// to one column less than it has, or than 80 if it does not tell. One byte of `text` takes a
// column.
std::string CutToTerminal(std::string text);

// Externally synchronised.
class Progress {
 public:
  // `verb` is "checked" in "checked 1.2 GiB of 3.4 GiB (35%)".
  explicit Progress(std::string verb);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { End(); }

  // Shows the bytes done and their total. Cheap enough to be called for each page.
  void Show(uint64_t done_bytes, uint64_t total_bytes);
  // Shows counts: "evaluated 3 of 8 windows (38%)". `noun` is the plural.
  void ShowCount(uint64_t done, uint64_t total, std::string_view noun);
  // Clears the line on a terminal, so that no partial line stays.
  void End();

 private:
  using Clock = std::chrono::steady_clock;
  bool IsTime() const { return Clock::now() >= next_; }
  void Draw(const std::string& done_of_total, uint64_t done, uint64_t total);

  const std::string verb_;
  const bool on_terminal_;
  Clock::time_point next_;
  bool shown_ = false;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_PROGRESS_H_
