// SPDX-License-Identifier: Apache-2.0
//
// Runs the `spillway` command as a child process, and reads its output.

#ifndef SPILLWAY_TESTS_SPILLWAY_COMMAND_H_
#define SPILLWAY_TESTS_SPILLWAY_COMMAND_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"

namespace spillway::test {

using Arguments = std::vector<std::string>;
using Json = nlohmann::ordered_json;

// Returns a discarded value if `text` is not JSON. It is not inline, because the parser takes
// seconds to compile.
Json ParseJson(const std::string& text);

// How a command ended.
struct Ended {
  int exit_code = -1;  // or minus the signal that killed it
  std::string out;
  std::string err;

  Json json() const { return ParseJson(out); }
};

// Returns the path of the build's own command, unless the environment names another, as it does
// where the tests run away from the build (tools/gpu-bundle).
std::string CommandPath();
// The same command with an emulated GPU, which takes --device cuda (emulated_gpu.cc).
std::string EmulatedPath();

// A running command. The destructor kills it.
class Command {
 public:
  // `without_uring`: run it as on a machine whose kernel refuses io_uring.
  explicit Command(const Arguments& arguments, bool without_uring = false,
                   const std::string& path = CommandPath());
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  void Signal(int signal) const;
  pid_t pid() const { return pid_; }
  // Whether the command has a handler for the signal by now.
  bool Catches(int signal) const;
  // What the command has written to stderr by now.
  std::string err() const { return ReadFile(output_ / "err"); }
  Ended Wait();
  bool has_ended();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  TempFolder output_;  // holds what it prints
};

inline Ended RunCommand(const Arguments& arguments) { return Command(arguments).Wait(); }
inline Ended RunEmulated(const Arguments& arguments) {
  return Command(arguments, /*without_uring=*/false, EmulatedPath()).Wait();
}

// Runs the command in a shell. `before` goes before it, such as "ulimit -f 8;", and `after` goes
// after it, such as "| head -1". In a pipeline the exit code is the command's if the rest succeeds.
Ended RunInShell(const std::string& before, const Arguments& arguments,
                 const std::string& after = "");

// Returns the arguments of both lists.
Arguments operator+(Arguments first, const Arguments& second);

// Returns the complete lines of a JSON Lines file.
std::vector<Json> ReadLog(const std::string& path);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_COMMAND_H_
