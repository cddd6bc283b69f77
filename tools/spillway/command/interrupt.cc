// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers, which do only what is safe inside a handler.

#include "tools/spillway/command/interrupt.h"

#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "src/base/mutex.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

// One interrupt may arrive twice: `timeout` signals its child and then the child's group.
constexpr int64_t kSamePressNanoseconds = 300'000'000;

std::atomic<bool> interrupted{false};
std::atomic<int64_t> first_nanoseconds{0};
std::atomic<bool> commit_requested{false};
std::atomic<bool> may_tidy{false};    // a thread waits for `second`
std::atomic<bool> tidies_now{false};  // that thread will end the process
sem_t second;
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
    if (now - first <= kSamePressNanoseconds) return;
    // The second interrupt may arrive twice as well, on two threads at once.
    if (!first_nanoseconds.compare_exchange_strong(first, now)) return;
    tidies_now.store(true);
    if (!may_tidy.exchange(false)) _exit(static_cast<int>(ExitCode::kInterrupted));
    sem_post(&second);
    return;
  }
  interrupted.store(true);
  constexpr std::string_view kNote =
      "\ninterrupted: finishing what is under way; again to stop at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kNote.data(), kNote.size());
}

void OnCommitRequest(int /*signal*/) { commit_requested.store(true); }

// What the second interrupt does.
struct Tidies {
  base::Mutex mutex;
  std::vector<std::function<void()>> all ABSL_GUARDED_BY(mutex);
};
Tidies& AllTidies() {
  static auto* const tidies = new Tidies;
  return *tidies;
}

void TidyWhenInterruptedAgain() {
  while (sem_wait(&second) != 0) {  // a signal's handler ran on this thread
  }
  std::vector<std::function<void()>> all;
  {
    Tidies& tidies = AllTidies();
    base::MutexLock lock(&tidies.mutex);
    all = tidies.all;
  }
  for (const std::function<void()>& tidy : all) tidy();
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

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
  // SIGHUP means that the terminal is gone. Under nohup it must stay ignored.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    Handle({SIGHUP}, OnSignal);
  }
  return interrupted;
}

void TidyOnSecondInterrupt(std::function<void()> tidy) {
  Tidies& tidies = AllTidies();
  base::MutexLock lock(&tidies.mutex);
  tidies.all.push_back(std::move(tidy));
  if (tidies.all.size() > 1) return;
  sem_init(&second, 0, 0);
  try {
    std::thread(TidyWhenInterruptedAgain).detach();
    may_tidy.store(true);
  } catch (const std::system_error&) {
    may_tidy.store(false);  // no thread can be had: the second interrupt just ends the process
  }
}

void WaitForTidying() {
  while (tidies_now.load()) pause();
}

std::atomic<bool>& CatchCommitRequests() {
  Handle({SIGUSR1}, OnCommitRequest);
  return commit_requested;
}

}  // namespace spillway::command
