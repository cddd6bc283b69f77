// SPDX-License-Identifier: Apache-2.0
//
// Signal handling: only what is safe inside a handler.

#include "tools/spillway/interrupt.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "tools/spillway/exit_code.h"

namespace spillway::command {
namespace {

// One press may arrive twice: `timeout` signals its child and then the child's group.
constexpr int64_t kSamePressNanoseconds = 300'000'000;

std::atomic<bool> interrupted{false};
std::atomic<int64_t> first_nanoseconds{0};
std::atomic<bool> commit_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

int64_t NowNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void OnSignal(int /*signal*/) {
  int64_t first = 0;
  const int64_t now = NowNanoseconds();
  if (!first_nanoseconds.compare_exchange_strong(first, now)) {
    if (now - first > kSamePressNanoseconds) _exit(static_cast<int>(ExitCode::kInterrupted));
    return;
  }
  interrupted.store(true);
  constexpr std::string_view kNote =
      "\ninterrupted: finishing what is under way; again to stop at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kNote.data(), kNote.size());
}

void OnCommitRequest(int /*signal*/) { commit_requested.store(true); }

void Handle(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}

}  // namespace

const std::atomic<bool>& CatchInterrupts() {
  Handle({SIGINT, SIGTERM}, OnSignal);
  return interrupted;
}

std::atomic<bool>& CatchCommitRequests() {
  Handle({SIGUSR1}, OnCommitRequest);
  return commit_requested;
}

}  // namespace spillway::command
