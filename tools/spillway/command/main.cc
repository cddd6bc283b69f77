// SPDX-License-Identifier: Apache-2.0
//
// The `spillway` command: runs one subcommand and turns its status into an exit code. Data goes to
// stdout, talk to stderr.

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "src/base/errno_status.h"
#include "tools/spillway/command/command_line.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

absl::Status ParseAndRun(int argc, char** argv) {
  Run run;
  absl::Status status = ParseCommandLine({argv + std::min(argc, 1), argv + argc}, &run);
  if (status.ok() && run) status = run();
  // An earlier piece may have failed and the last one not.
  const bool was_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status.ok() && !was_written) {
    status =
        absl::UnavailableError(absl::StrFormat("cannot write to stdout: %s", std::strerror(errno)));
  }
  return status;
}

// No exception is part of any contract here; what a library throws all the same must not abort the
// process.
absl::Status Guarded(int argc, char** argv) {
  try {
    return ParseAndRun(argc, argv);
  } catch (const std::bad_alloc&) {
    return WithExitCode(
        absl::ResourceExhaustedError(
            "memory, or what this process may have of it, does not suffice: use a smaller --seq or "
            "--batch, or smaller budgets, or raise the limits ('ulimit -v', 'ulimit -d')"),
        ExitCode::kCannot);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) {
      return absl::InternalError(error.what());
    }
    return base::ThreadErrorToStatus(error.code().value(), "a thread");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// A standard stream that the caller closed stays unusable, so that no file takes its number and
// becomes the place where the talk goes.
void KeepStandardStreamsFree() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Takes the lowest number that is free, which is `fd`; the other direction than its use.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// A reader that went away and a limit of file sizes are errors of a write, as a full disk is.
void TakeSignalsAsErrors() {
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

// From the command line to the exit code.
struct Invocation {
  int argc;
  char** argv;
  ExitCode exit_code = ExitCode::kDone;
};

void* Main(void* invocation) {
  auto* const of = static_cast<Invocation*>(invocation);
  const absl::Status status = Guarded(of->argc, of->argv);
  if (!status.ok()) absl::FPrintF(stderr, "spillway: %s\n", std::string(status.message()));
  of->exit_code = ExitCodeOf(status);
  return nullptr;
}

// `ulimit -s` bounds the stack of the first thread and, unless they are told otherwise, of all
// others. Where it is small, the work goes to a thread whose stack it does not bound.
void RunWithEnoughStack(Invocation* invocation) {
  constexpr size_t kStackBytes = size_t{8} << 20;
  rlimit stack{};
  pthread_attr_t enough;
  pthread_t thread{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kStackBytes ||
      pthread_attr_init(&enough) != 0 || pthread_attr_setstacksize(&enough, kStackBytes) != 0 ||
      pthread_setattr_default_np(&enough) != 0 ||
      pthread_create(&thread, &enough, Main, invocation) != 0) {
    Main(invocation);
    return;
  }
  pthread_join(thread, nullptr);
}

}  // namespace
}  // namespace spillway::command

int main(int argc, char** argv) {
  spillway::command::TakeSignalsAsErrors();
  spillway::command::KeepStandardStreamsFree();
  spillway::command::Invocation invocation = {argc, argv};
  spillway::command::RunWithEnoughStack(&invocation);
  return static_cast<int>(invocation.exit_code);
}
