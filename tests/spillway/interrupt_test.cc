// SPDX-License-Identifier: Apache-2.0
//
// The effect of each Ctrl-C, tested in a child process that never ends by itself.

#include "tools/spillway/command/interrupt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "tests/spillway/command.h"
#include "tests/spillway/full_pipe.h"
#include "tests/spillway/training.h"
#include "tests/temp_folder.h"

namespace spillway::command {
namespace {

using Say = std::function<void()>;

// A child process that never ends by itself. Its `work` receives a function that sends one word to
// the test. The test waits for these words, so that no press comes before the handler of the last
// press has run, however busy the machine is.
class Child {
 public:
  explicit Child(const std::function<void(const Say&)>& work) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      work([end = ends[1]] {
        if (write(end, "s", 1) != 1) _exit(1);
      });
      while (true) pause();
    }
    close(ends[1]);
    said_ = ends[0];
  }
  ~Child() {
    close(said_);
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void WaitForWord() const {
    char word = 0;
    EXPECT_EQ(read(said_, &word, 1), 1);
  }
  // Waits before it sends SIGINT: a signal that comes within 300 ms counts as the same press.
  void Press() const {
    usleep(310'000);
    kill(pid_, SIGINT);
  }
  bool StillRuns() const {
    usleep(310'000);
    return waitpid(pid_, nullptr, WNOHANG) == 0;
  }
  int ExitCode() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int said_ = -1;
};

// Sends one word when it is ready for the first press, and one when the flag reports that press.
void SayWhenInterrupted(const std::atomic<bool>& interrupted, const Say& say) {
  say();
  while (!interrupted.load()) usleep(1000);
  say();
}

TEST(Interrupt, TheSecondEndsTheProcess) {
  Child child([](const Say& say) { SayWhenInterrupted(CatchInterrupts(), say); });
  child.WaitForWord();
  child.Press();
  child.WaitForWord();
  EXPECT_TRUE(child.StillRuns());
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
}

TEST(Interrupt, TheSecondTidiesFirst) {
  const test::TempFolder folder;
  const std::string own = folder / "own";
  std::filesystem::create_directories(own + "/store");
  Child child([own](const Say& say) {
    const std::atomic<bool>& interrupted = CatchInterrupts();
    TidyOnSecondInterrupt([own] { std::filesystem::remove_all(own); });
    SayWhenInterrupted(interrupted, say);
  });
  child.WaitForWord();
  child.Press();
  child.WaitForWord();
  EXPECT_TRUE(child.StillRuns());
  EXPECT_TRUE(std::filesystem::exists(own));
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
  EXPECT_FALSE(std::filesystem::exists(own));
}

TEST(Interrupt, TheThirdEndsATidyingThatHangs) {
  Child child([](const Say& say) {
    const std::atomic<bool>& interrupted = CatchInterrupts();
    TidyOnSecondInterrupt([say] {
      say();
      while (true) pause();
    });
    SayWhenInterrupted(interrupted, say);
  });
  child.WaitForWord();
  child.Press();
  child.WaitForWord();
  child.Press();
  child.WaitForWord();  // sent by the cleanup
  EXPECT_TRUE(child.StillRuns());
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
}

TEST(Interrupt, TheSecondTidiesAllThatIsRegistered) {
  const test::TempFolder folder;
  Child child([&](const Say& say) {
    const std::atomic<bool>& interrupted = CatchInterrupts();
    for (const char* name : {"a", "b"}) {
      TidyOnSecondInterrupt([path = folder / name] { test::WriteFile(path, ""); });
    }
    SayWhenInterrupted(interrupted, say);
  });
  child.WaitForWord();
  child.Press();
  child.WaitForWord();
  EXPECT_TRUE(child.StillRuns());
  child.Press();
  EXPECT_EQ(child.ExitCode(), 130);
  EXPECT_TRUE(std::filesystem::exists(folder / "a"));
  EXPECT_TRUE(std::filesystem::exists(folder / "b"));
}

TEST(Interrupt, TheSecondNamesAScratchStoreAndLeavesNoEmptyFile) {
  const test::Training training;
  const test::FullPipe log(training.log());  // holds the run in its first step
  const std::string metrics = training / "metrics";
  const std::string trace = training / "trace";
  test::Arguments arguments = training.TrainInStore(10);
  arguments.insert(arguments.end(),
                   {"--durability", "none", "--metrics-file", metrics, "--trace", trace});
  test::Command command(arguments);
  // A step's metrics are written before its line in the log, where the run then stays.
  std::error_code error;
  while (!command.has_ended() && !(std::filesystem::file_size(metrics, error) > 0 && !error))
    usleep(1000);
  EXPECT_TRUE(std::filesystem::exists(training.store()));
  EXPECT_TRUE(std::filesystem::exists(trace));
  for (int press = 0; press < 2; ++press) {
    usleep(310'000);
    ASSERT_FALSE(command.has_ended());
    command.Signal(SIGINT);
  }
  const test::Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_THAT(ended.err, ::testing::HasSubstr("'spillway remove " + training.store() + " --yes'"));
  EXPECT_EQ(test::RunCommand({"remove", training.store(), "--yes"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(trace));
  EXPECT_GT(std::filesystem::file_size(metrics), 0U);
}

}  // namespace
}  // namespace spillway::command
