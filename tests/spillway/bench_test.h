// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the `spillway bench` tests. It checks that the command leaves its folders empty,
// however it ends.

#ifndef SPILLWAY_TESTS_SPILLWAY_BENCH_TEST_H_
#define SPILLWAY_TESTS_SPILLWAY_BENCH_TEST_H_

#include <linux/magic.h>
#include <signal.h>
#include <sys/vfs.h>

#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/temp_folder.h"

namespace spillway::test {

struct BadInput {
  Arguments arguments;
  int exit_code;
  const char* word;
};

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() {
    for (const std::string& folder : {a_, b_}) std::filesystem::create_directory(folder);
  }

  void ExpectNothingLeft() const {
    for (const std::string& folder : {a_, b_}) {
      EXPECT_TRUE(std::filesystem::is_empty(folder)) << folder;
    }
  }

  // Starts a run for each time and sends it `presses` interrupts, the first at that time.
  void ExpectInterrupted(const Arguments& arguments, std::initializer_list<int> milliseconds,
                         int presses) const {
    for (const int time : milliseconds) {
      SCOPED_TRACE(time);
      Command command(arguments);
      std::this_thread::sleep_for(std::chrono::milliseconds(time));
      command.Signal(SIGINT);
      for (int press = 1; press < presses; ++press) {
        // A signal within 300 ms of the last one counts as the same press.
        std::this_thread::sleep_for(std::chrono::milliseconds(310));
        command.Signal(SIGINT);
      }
      const Ended ended = command.Wait();
      // A signal that arrives before the handler is installed has its default effect.
      EXPECT_TRUE(ended.exit_code == 130 || ended.exit_code == -SIGINT) << ended.exit_code;
      ExpectNothingLeft();
    }
  }

  void ExpectExplained(const std::vector<BadInput>& inputs) const {
    for (const BadInput& bad : inputs) {
      const Ended ended = RunCommand(bad.arguments);
      EXPECT_EQ(ended.exit_code, bad.exit_code) << bad.word << ": " << ended.err;
      EXPECT_THAT(ended.err, ::testing::HasSubstr(bad.word));
      ExpectNothingLeft();
    }
  }

  // Whether the file system of `folder` is in memory, where no drive can be measured.
  static bool IsInMemory(const std::string& folder) {
    struct statfs info{};
    return ::statfs(folder.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC;
  }

  const TempFolder folder_;
  const std::string a_ = folder_ / "a", b_ = folder_ / "b";
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_BENCH_TEST_H_
