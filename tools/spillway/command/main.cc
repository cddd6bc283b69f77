// SPDX-License-Identifier: Apache-2.0
//
// The `spillway` command: runs one subcommand and turns its status into an exit code. Data goes to
// stdout, messages to stderr.

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
#include "tools/spillway/command/interrupt.h"

namespace spillway::command {
namespace {

absl::Status ParseAndRun(int argc, char** argv) {
  Run run;
  absl::Status status = ParseCommandLine({argv + std::min(argc, 1), argv + argc}, &run);
  if (status.ok() && run) status = run();
  // An earlier write may have failed even if the last one did not.
  const bool was_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status.ok() && !was_written) {
    status =
        absl::UnavailableError(absl::StrFormat("cannot write to stdout: %s", std::strerror(errno)));
  }
  return status;
}

// Turns exceptions into a status. No contract here includes one, but an exception that a library
// throws must not abort the process.
absl::Status Guarded(int argc, char** argv) {
  try {
    return ParseAndRun(argc, argv);
  } catch (const std::bad_alloc&) {
    return WithExitCode(
        absl::ResourceExhaustedError(
            "memory, or what this process may have of it, does not suffice: use a smaller --seq, "
            "--batch or --accumulate, or smaller budgets, or raise the limits ('ulimit -v', "
            "'ulimit -d')"),
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

// Keeps a standard stream unusable if the caller closed it. Otherwise a file could get its number
// and then receive the messages.
void KeepStandardStreamsFree() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is `fd`. The mode is opposite to the stream's use.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Ignores the signals for a reader that went away and for the limit of file sizes, so that the
// write fails with an error, as on a full disk.
void TakeSignalsAsErrors() {
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

// One run of the command: its arguments and its exit code.
struct Invocation {
  int argc;
  char** argv;
  ExitCode exit_code = ExitCode::kDone;
};

void* Main(void* invocation) {
  auto* const of = static_cast<Invocation*>(invocation);
  const absl::Status status = Guarded(of->argc, of->argv);
  WaitForTidying();
  if (!status.ok()) absl::FPrintF(stderr, "spillway: %s\n", std::string(status.message()));
  of->exit_code = ExitCodeOf(status);
  return nullptr;
}

// `ulimit -s` bounds the stack of the first thread and, by default, of all others. If that bound is
// below kStackBytes, runs the work on a thread with a stack of kStackBytes, which other threads
// then get by default.
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
