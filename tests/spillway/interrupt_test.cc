// SPDX-License-Identifier: Apache-2.0
//
// What each Ctrl-C does, in a child process that works on and on.

#include "tools/spillway/command/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "tests/temp_folder.h"

namespace spillway::command {
namespace {

// A child that prepares, says so, and then does not end of itself.
class Child {
 public:
  explicit Child(const std::function<void()>& prepare) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prepare();
      if (write(ends[1], "r", 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ends[1]);
    char ready = 0;
    EXPECT_EQ(read(ends[0], &ready, 1), 1);
    close(ends[0]);
  }
  ~Child() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Some time after the one before: what comes sooner counts as the same.
  void Press() {
    usleep(310'000);
    kill(pid_, SIGINT);
  }
  bool is_running() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }
  int ExitCode() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

TEST(Interrupt, TheSecondEndsTheProcess) {
  Child child([] { CatchInterrupts(); });
  child.Press();
  usleep(310'000);
  EXPECT_TRUE(child.is_running());
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
}

TEST(Interrupt, TheSecondTidiesFirst) {
  const test::TempFolder folder;
  const std::string own = folder / "own";
  std::filesystem::create_directories(own + "/store");
  Child child([own] {
    CatchInterrupts();
    TidyOnSecondInterrupt([own] { std::filesystem::remove_all(own); });
  });
  child.Press();
  usleep(310'000);
  EXPECT_TRUE(std::filesystem::exists(own));
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
  EXPECT_FALSE(std::filesystem::exists(own));
}

TEST(Interrupt, TheThirdEndsATidyingThatHangs) {
  Child child([] {
    CatchInterrupts();
    TidyOnSecondInterrupt([] {
      while (true) pause();
    });
  });
  child.Press();
  child.Press();
  usleep(310'000);
  EXPECT_TRUE(child.is_running());
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
}

}  // namespace
}  // namespace spillway::command
