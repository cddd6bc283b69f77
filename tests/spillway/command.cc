// SPDX-License-Identifier: Apache-2.0
//
// Runs the command as a child process. Its output goes to files, so that it never blocks on a full
// pipe.

#include "tests/spillway/command.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/io/seccomp.h"

namespace spillway::test {
namespace {

// Runs in the child, and does only what is safe after fork.
[[noreturn]] void Execute(const char* command, char* const* arguments, const char* out,
                          const char* err, bool without_uring) {
  if (without_uring && !io::ForbidInThisThread(SYS_io_uring_setup, EPERM)) _exit(126);
  // Under nohup the child would ignore SIGHUP, and a test that sends it would wait for the run's
  // last step.
  (void)signal(SIGHUP, SIG_DFL);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  const int out_fd = open(out, kFlags, 0600);
  const int err_fd = open(err, kFlags, 0600);
  dup2(out_fd, STDOUT_FILENO);
  dup2(err_fd, STDERR_FILENO);
  execv(command, arguments);
  for (const char* words : {"cannot execute ", command, ": ", strerrorname_np(errno), "\n"}) {
    (void)!write(STDERR_FILENO, words, strlen(words));
  }
  _exit(127);
}

}  // namespace

Json ParseJson(const std::string& text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string CommandPath() {
  const char* const elsewhere = getenv("SPILLWAY_COMMAND_UNDER_TEST");
  return elsewhere != nullptr ? elsewhere : SPILLWAY_COMMAND;
}

std::string EmulatedPath() {
  const char* const elsewhere = getenv("SPILLWAY_EMULATED_UNDER_TEST");
  return elsewhere != nullptr ? elsewhere : SPILLWAY_EMULATED;
}

Command::Command(const Arguments& arguments, bool without_uring, const std::string& path) {
  const std::string out = output_ / "out";
  const std::string err = output_ / "err";
  std::vector<std::string> words = {"spillway"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) {
    std::perror("fork");
    std::abort();
  }
  if (pid_ == 0) Execute(path.c_str(), pointers.data(), out.c_str(), err.c_str(), without_uring);
}

Command::~Command() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

void Command::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

bool Command::Catches(int signal) const {
  const std::string status = ReadFile("/proc/" + std::to_string(pid_) + "/status");
  const size_t at = status.find("SigCgt:");
  if (at == std::string::npos) return false;
  return ((std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1)) & 1) != 0;
}

bool Command::has_ended() {
  if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

Ended Command::Wait() {
  if (pid_ > 0) waitpid(pid_, &status_, 0);
  pid_ = -1;
  Ended ended;
  ended.exit_code = WIFSIGNALED(status_) ? -WTERMSIG(status_) : WEXITSTATUS(status_);
  ended.out = ReadFile(output_ / "out");
  ended.err = ReadFile(output_ / "err");
  return ended;
}

Ended RunInShell(const std::string& before, const Arguments& arguments, const std::string& after) {
  const TempFolder output;
  std::string words = CommandPath();
  for (const std::string& argument : arguments) {
    words += " '" + argument + "'";
    if (argument.find('\'') != std::string::npos) std::abort();
  }
  const std::string script = "set -o pipefail; " + before + " " + words + " " + after;
  WriteFile(output / "script", script + "\n");
  const std::string redirected =
      "bash " + output / "script" + " >" + output / "out" + " 2>" + output / "err";
  const int status = std::system(redirected.c_str());
  Ended ended;
  ended.exit_code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  ended.out = ReadFile(output / "out");
  ended.err = ReadFile(output / "err");
  return ended;
}

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<Json> ReadLog(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(ReadFile(path));
  for (std::string line; std::getline(text, line) && !text.eof();) {
    lines.push_back(ParseJson(line));
  }
  return lines;
}

}  // namespace spillway::test
