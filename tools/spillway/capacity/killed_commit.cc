// SPDX-License-Identifier: Apache-2.0
//
// The child tells its parent through a pipe what it has reached: kBegins, then kDone, or kFailed
// and a message.

#include "tools/spillway/capacity/killed_commit.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::capacity {
namespace {

constexpr char kBegins = 'b';
constexpr char kDone = 'd';
constexpr char kFailed = 'f';

std::atomic<pid_t> committing_child{0};

void Tell(int pipe, std::string_view words) {
  while (!words.empty()) {
    const ssize_t written = ::write(pipe, words.data(), words.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) words.remove_prefix(static_cast<size_t>(written));
  }
}

// Does not return. The terminal's signals are for the parent, which kills the child; the child dies
// with it.
[[noreturn]] void RunChild(int pipe, pid_t parent, const CommitWork& work) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) ::signal(number, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const absl::Status status = work([pipe] { Tell(pipe, {&kBegins, 1}); });
  if (status.ok()) {
    Tell(pipe, {&kDone, 1});
  } else {
    Tell(pipe, kFailed + std::string(status.message()));
    ::_exit(1);
  }
  while (true) ::pause();  // closing the store is not part of a kill
}

// The parent's end of a child. The destructor kills it.
class Child {
 public:
  Child(pid_t pid, int pipe) : pid_(pid), pipe_(pipe) { committing_child.store(pid); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    Kill();
    committing_child.store(0);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    ::close(pipe_);
  }

  void Kill() const { ::kill(pid_, SIGKILL); }

  // Waits until the child has told something, until `deadline`, or for a moment. Returns what it
  // has told so far, and in `*ended` whether it has closed its end.
  const std::string& Listen(absl::Time deadline, bool* ended) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    pollfd ready = {.fd = pipe_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 100))) <= 0) return told_;
    char words[512];
    const ssize_t got = ::read(pipe_, words, sizeof(words));
    if (got > 0) told_.append(words, static_cast<size_t>(got));
    if (got == 0) *ended = true;
    return told_;
  }

 private:
  const pid_t pid_;
  const int pipe_;
  std::string told_;
};

bool Has(const std::string& told, char word) { return told.find(word) != std::string::npos; }

}  // namespace

absl::StatusOr<bool> KillDuringCommit(const CommitWork& work, absl::Duration delay,
                                      const std::atomic<bool>* stop) {
  int ends[2];
  if (::pipe(ends) != 0) return base::ErrnoToStatus(errno, "make a pipe");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    for (const int end : ends) ::close(end);
    return base::ErrnoToStatus(error, "start a process that commits");
  }
  if (pid == 0) {
    ::close(ends[0]);
    RunChild(ends[1], parent, work);
  }
  ::close(ends[1]);
  Child child(pid, ends[0]);
  absl::Time deadline = absl::InfiniteFuture();
  bool ended = false;
  while (absl::Now() < deadline) {
    if (stop != nullptr && stop->load()) return absl::CancelledError("interrupted");
    const std::string& told = child.Listen(deadline, &ended);
    // A message may have any letters, so what failed comes first.
    if (told.starts_with(kFailed) || told.starts_with(std::string{kBegins, kFailed})) {
      while (!ended) child.Listen(absl::InfiniteFuture(), &ended);
      return absl::InternalError(absl::StrCat("the process that was to be killed failed: ",
                                              told.substr(told.find(kFailed) + 1)));
    }
    if (ended) return absl::InternalError("the process that was to be killed ended by itself");
    if (Has(told, kDone)) return false;
    if (Has(told, kBegins) && deadline == absl::InfiniteFuture()) deadline = absl::Now() + delay;
  }
  // What it said until the kill counts.
  child.Kill();
  while (!ended) child.Listen(absl::InfiniteFuture(), &ended);
  return !Has(child.Listen(absl::Now(), &ended), kDone);
}

void KillCommittingChild() {
  if (const pid_t child = committing_child.load(); child > 0) ::kill(child, SIGKILL);
}

}  // namespace spillway::capacity
