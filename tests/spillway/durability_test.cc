// SPDX-License-Identifier: Apache-2.0
//
// What a run keeps: nothing, a commit at its end, or commits on demand. Also what it prints about
// the cost of commits.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Durability, NoneGivesTheSameNumbersAndLeavesNothing) {
  const Training training;
  const Ended in_memory = RunCommand(training.Train(6));
  ASSERT_EQ(in_memory.exit_code, 0) << in_memory.err;
  const Numbers expected = training.NumbersOf(in_memory.json());
  const Ended scratch =
      RunCommand(training.TrainInStore(6) + Arguments{"--durability", "none", "--device-bytes",
                                                      "1MiB", "--pinned-bytes", "1MiB"});
  ASSERT_EQ(scratch.exit_code, 0) << scratch.err;
  EXPECT_EQ(training.NumbersOf(scratch.json()), expected);
  EXPECT_FALSE(std::filesystem::exists(training.store()));
  EXPECT_THAT(scratch.err, HasSubstr("never synced"));
}

TEST(Durability, NoneKeepsNothingToResume) {
  const Training training;
  for (const Arguments& more : {Arguments{"--resume"}, Arguments{"--commit-every", "2"}}) {
    const Ended ended =
        RunCommand(training.TrainInStore(2) + Arguments{"--durability", "none"} + more);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("--durability none"));
  }
  EXPECT_FALSE(std::filesystem::exists(training.store()));
}

TEST(Durability, TheCostIsStatedBeforeTheRun) {
  const Training training;
  const Ended once = RunCommand(training.TrainInStore(1));
  EXPECT_THAT(once.err, HasSubstr("note: the store takes up to "));
  EXPECT_THAT(once.err, HasSubstr("a commit writes what changed since the last, at most "));
  EXPECT_THAT(once.err, HasSubstr("SIGUSR1"));
  std::filesystem::remove_all(training.store());
  const Ended often = RunCommand(training.TrainInStore(1) + Arguments{"--commit-every", "1"});
  EXPECT_THAT(often.err, HasSubstr("note: the store takes up to "));
  EXPECT_THAT(often.err, Not(HasSubstr("SIGUSR1")));
  EXPECT_THAT(RunCommand(training.Train(1)).err, Not(HasSubstr("the store takes")));
}

// Returns the arguments with another value for a flag.
Arguments With(Arguments arguments, const std::string& flag, const std::string& value) {
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  *std::next(at) = value;
  return arguments;
}

TEST(Durability, ClosedStandardStreamsHarmNothing) {
  const Training training;
  std::string words;
  for (const std::string& word : training.TrainInStore(2)) words += " " + word;
  const std::string command = CommandPath() + words + " <&- >&- 2>&-";
  EXPECT_NE(std::system(command.c_str()), 0) << "the summary could not be printed";
  EXPECT_EQ(RunCommand({"fsck", training.store()}).exit_code, 0);
  const Ended resumed = RunCommand(training.TrainInStore(2) + Arguments{"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps_this_run"], 0);
}

TEST(Durability, AStartThatFailsLeavesNoStore) {
  const Training training;
  // The run reads the weights after it has created the store, and the model's folder has none.
  const Ended ended =
      RunCommand(With(training.TrainInStore(2), "--init", "model") + Arguments{"--resume"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(training.store()));
  EXPECT_EQ(RunCommand(training.TrainInStore(2)).exit_code, 0) << "without --resume";
}

TEST(Durability, Usr1Commits) {
  const Training training;
  const Arguments arguments = training.TrainInStore(100'000'000);
  {
    Command command(arguments);
    while (!command.has_ended() && ReadLog(training.log()).size() < 2) usleep(2000);
    command.Signal(SIGUSR1);
    const size_t asked = ReadLog(training.log()).size();
    while (!command.has_ended() && ReadLog(training.log()).size() < asked + 3) usleep(2000);
    command.Signal(SIGKILL);
    ASSERT_EQ(command.Wait().exit_code, -SIGKILL);
  }
  const Ended resumed = RunCommand(arguments + Arguments{"--resume", "--stop-after", "1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_GT(resumed.json()["steps"], 2) << "it goes on from the commit";
  EXPECT_EQ(resumed.json()["steps_this_run"], 1);
}

}  // namespace
}  // namespace spillway::test
