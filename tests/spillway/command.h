// SPDX-License-Identifier: Apache-2.0
//
// The `spillway` command as a child process, and what it prints.

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

// A discarded value if it is none. Not in the header, because the parser takes seconds to compile.
Json ParseJson(const std::string& text);

// How a command ended.
struct Ended {
  int exit_code = -1;  // or minus the signal that killed it
  std::string out;
  std::string err;

  Json json() const { return ParseJson(out); }
};

// The build's own, unless the tests have moved away from it (tools/gpu-bundle).
std::string CommandPath();

// A command that is running. Destruction kills it.
class Command {
 public:
  // `without_uring`: on a machine whose kernel refuses io_uring.
  explicit Command(const Arguments& arguments, bool without_uring = false);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  void Signal(int signal) const;
  pid_t pid() const { return pid_; }
  Ended Wait();
  bool has_ended();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  TempFolder output_;  // holds what it prints
};

inline Ended RunCommand(const Arguments& arguments) { return Command(arguments).Wait(); }

// The command as a shell runs it: `before` it, as "ulimit -f 8;", and `after` it, as "| head -1".
// Of a pipeline the exit code is the command's.
Ended RunInShell(const std::string& before, const Arguments& arguments,
                 const std::string& after = "");

// The arguments of both lists.
Arguments operator+(Arguments first, const Arguments& second);

// The complete lines of a JSON lines file.
std::vector<Json> ReadLog(const std::string& path);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_COMMAND_H_
