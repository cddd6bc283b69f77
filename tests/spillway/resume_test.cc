// SPDX-License-Identifier: Apache-2.0
//
// A run that is stopped and resumed gives the same numbers as an uninterrupted run. Runs are
// stopped by --stop-after, by Ctrl-C, and by kill -9 between commits.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/full_pipe.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSteps = 12;
// More steps than any test runs.
constexpr int64_t kEndless = 100'000'000;

// Flags for what must be the same on both sides of a stop: fp16-amp with a loss scale that grows
// during the run, a shuffled order, a warm-up that a stop falls into, and accumulation.
Arguments Flags() {
  return {"--precision",  "fp16-amp", "--loss-scale-interval", "3",
          "--loss-scale", "1024",     "--warmup-steps",        "6",
          "--order",      "shuffled", "--accumulate",          "2",
          "--batch",      "2"};
}

// Returns the arguments with another value for a flag.
Arguments With(Arguments arguments, const std::string& flag, const std::string& value) {
  *std::next(std::find(arguments.begin(), arguments.end(), flag)) = value;
  return arguments;
}

Arguments WithSteps(const Arguments& arguments, int64_t steps) {
  return With(arguments, "--steps", std::to_string(steps));
}

// Returns the numbers of an uninterrupted run of `steps` steps in memory.
Numbers Uncut(int64_t steps = kSteps) {
  const Training training;
  const Ended ended = RunCommand(training.Train(steps) + Flags());
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return training.NumbersOf(ended.json());
}

// Waits until the log has `lines` lines or the command has ended.
void AwaitLog(const Training& training, Command* command, size_t lines) {
  while (!command->has_ended() && ReadLog(training.log()).size() < lines) usleep(2000);
}

TEST(Resume, StoppedAndContinuedIsTheSame) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + Flags();
  const Ended first = RunCommand(arguments + Arguments{"--stop-after", "5"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.json()["exit_reason"], "stopped");
  EXPECT_EQ(first.json()["steps"], 5);
  const Ended second =
      RunCommand(arguments + Arguments{"--resume", "--stop-after", "4", "--io", "posix"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.json()["steps"], 9);
  const Ended third =
      RunCommand(arguments + Arguments{"--resume", "--checkpoint-activations", "off"});
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(third.json()["exit_reason"], "done");
  EXPECT_EQ(training.NumbersOf(third.json()), Uncut());
}

class Interrupted : public ::testing::TestWithParam<int> {};

TEST_P(Interrupted, FinishesTheStepCommitsAndExits130) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kEndless) + Flags();
  Command command(arguments);
  AwaitLog(training, &command, 2);
  command.Signal(GetParam());
  const Ended interrupted = command.Wait();
  ASSERT_EQ(interrupted.exit_code, 130) << interrupted.err;
  EXPECT_THAT(interrupted.err, HasSubstr("--resume"));
  EXPECT_EQ(interrupted.json()["exit_reason"], "interrupted");
  const int64_t done = interrupted.json()["steps"].get<int64_t>();
  EXPECT_EQ(done, static_cast<int64_t>(ReadLog(training.log()).size()));
  const int64_t steps = done + 3;
  const Ended resumed = RunCommand(WithSteps(arguments, steps) + Arguments{"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps_this_run"], 3);
  EXPECT_EQ(training.NumbersOf(resumed.json()), Uncut(steps));
}

INSTANTIATE_TEST_SUITE_P(Signals, Interrupted, ::testing::Values(SIGINT, SIGTERM));

// The run is held in its fourth step, where it writes the step's line into a pipe that is full.
TEST(Resume, ASecondCtrlCStopsAtOnceAndLosesNoCommit) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kEndless) + Flags();
  ASSERT_EQ(RunCommand(arguments + Arguments{"--stop-after", "3"}).exit_code, 0);
  FullPipe pipe(training / "pipe");
  Command command(With(arguments, "--log-json", training / "pipe") + Arguments{"--resume"});
  const auto await = [&](const auto& condition) {
    while (!command.has_ended() && !condition()) usleep(2000);
  };
  // A step is told on stderr before its line is written into the log.
  await([&] { return command.err().find("step 4/") != std::string::npos; });
  command.Signal(SIGINT);
  await([&] { return command.err().find("finishing what is under way") != std::string::npos; });
  usleep(310'000);  // a signal within 300 ms counts as the same press
  ASSERT_FALSE(command.has_ended()) << "the first press ended it: " << command.Wait().err;
  command.Signal(SIGINT);
  pipe.Close();  // the write fails, so a run that goes on ends with a summary
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_EQ(RunCommand({"fsck", training.store()}).exit_code, 0);
  const Ended resumed = RunCommand(arguments + Arguments{"--resume", "--stop-after", "1"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps"], 4);
  EXPECT_EQ(training.NumbersOf(resumed.json()), Uncut(4));
}

TEST(Resume, CtrlCWhileDevicesAreMeasuredEndsTheRunBeforeItBegins) {
  const Training training;
  Command command(training.TrainInStore(kEndless) + Flags() + Arguments{"--calibrate", "now"});
  // The run creates the store just before it measures the devices.
  while (!command.has_ended() && !std::filesystem::exists(training.store() + "/spillway-store")) {
    usleep(500);
  }
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("interrupted while calibrating"));
  EXPECT_TRUE(ReadLog(training.log()).empty());
  EXPECT_FALSE(std::filesystem::exists(training.store() + "/spillway-store"));
}

TEST(Resume, KilledBetweenCommitsContinuesFromTheLast) {
  const Training training;
  const Arguments arguments =
      training.TrainInStore(kSteps) + Flags() + Arguments{"--commit-every", "2"};
  for (const size_t lines : {3, 6, 9}) {
    const size_t before = ReadLog(training.log()).size();
    Command command(WithSteps(arguments, kEndless) + Arguments{"--resume"});
    AwaitLog(training, &command, before + lines);
    command.Signal(SIGKILL);
    ASSERT_EQ(command.Wait().exit_code, -SIGKILL);
  }
  int64_t steps = kSteps;
  for (const Json& line : ReadLog(training.log())) {
    steps = std::max(steps, line["step"].get<int64_t>() + 1);
  }
  const Ended ended = RunCommand(WithSteps(arguments, steps) + Arguments{"--resume"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_LT(ended.json()["steps_this_run"], steps) << "it did not start again";
  EXPECT_EQ(training.NumbersOf(ended.json()), Uncut(steps));
  int64_t expected = 0;
  for (const Json& line : ReadLog(training.log())) {
    EXPECT_EQ(line["step"], ++expected) << "each step has one line, in order";
  }
  EXPECT_EQ(expected, steps);
}

TEST(Resume, KilledBeforeAnyCommitStartsAtTheFirstStep) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + Flags();
  {
    Command command(WithSteps(arguments, kEndless));
    AwaitLog(training, &command, 2);
    command.Signal(SIGKILL);
    ASSERT_EQ(command.Wait().exit_code, -SIGKILL);
  }
  const Ended ended = RunCommand(arguments + Arguments{"--resume"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["steps_this_run"], kSteps);
  EXPECT_EQ(ReadLog(training.log()).size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(training.NumbersOf(ended.json()), Uncut());
}

// Resuming a finished run commits nothing, so it needs no room for a second state.
TEST(Resume, OfADoneRunNeedsRoomForOneState) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + Flags();
  const Ended small = RunCommand(arguments + Arguments{"--store-bytes", "64KiB"});
  ASSERT_EQ(small.exit_code, 2) << small.err;
  const Arguments bytes = {"--store-bytes", BytesNamedIn(small.err)};
  const Ended done = RunCommand(arguments + bytes);
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const Ended again = RunCommand(arguments + bytes + Arguments{"--resume"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.json()["steps_this_run"], 0);
  EXPECT_EQ(again.json()["weights_hash"], done.json()["weights_hash"]);
  const Ended more = RunCommand(WithSteps(arguments, kSteps + 1) + bytes + Arguments{"--resume"});
  EXPECT_EQ(more.exit_code, 2) << more.err;
  EXPECT_THAT(more.err, HasSubstr("--store-bytes"));
}

TEST(Resume, OfNothingBeginsAtTheFirstStep) {
  const Training training;
  const Ended ended = RunCommand(training.TrainInStore(kSteps) + Flags() + Arguments{"--resume"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(training.NumbersOf(ended.json()), Uncut());
}

// The store's disk is not mounted, or its folder is misspelled.
TEST(Resume, OfARunWhoseStoreIsNotThereLeavesItsLogAlone) {
  const Training training;
  const Arguments resume = training.TrainInStore(kSteps) + Flags() + Arguments{"--resume"};
  ASSERT_EQ(RunCommand(WithSteps(resume, 5)).exit_code, 0);
  const std::string log = ReadFile(training.log());
  const std::string elsewhere = training / "elsewhere";
  std::filesystem::rename(training.store(), elsewhere);
  for (const bool has_folder : {false, true}) {
    if (has_folder) std::filesystem::create_directory(training.store());
    const Ended ended = RunCommand(resume);
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    for (const std::string& words : {training.store(), training.log(), std::string("mount")}) {
      EXPECT_THAT(ended.err, HasSubstr(words));
    }
    EXPECT_EQ(ReadFile(training.log()), log);
    EXPECT_EQ(std::filesystem::exists(training.store()), has_folder);
  }
  std::filesystem::remove(training.store());
  std::filesystem::rename(elsewhere, training.store());
  const Ended resumed = RunCommand(resume);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(training.NumbersOf(resumed.json()), Uncut());
}

TEST(Resume, ALogThatEndsBeforeTheCommitIsTold) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + Flags() + Arguments{"--resume"};
  const auto gap = [&](int step, int commit) {
    return "note: --log-json " + training.log() + " ends at step " + std::to_string(step) +
           " and the run goes on after " + std::to_string(commit) +
           "; the steps between are missing";
  };
  ASSERT_EQ(RunCommand(WithSteps(arguments, 5)).exit_code, 0);
  const Ended whole = RunCommand(WithSteps(arguments, 6));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.err, Not(HasSubstr("are missing")));
  std::string log = ReadFile(training.log());
  for (int lines = 0; lines < 2; ++lines) log.resize(log.rfind('\n', log.size() - 2) + 1);
  WriteFile(training.log(), log);
  const Ended cut = RunCommand(WithSteps(arguments, 7));
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_THAT(cut.err, HasSubstr(gap(4, 6)));
  std::filesystem::remove(training.log());  // a new log has no gap in it
  const Ended anew = RunCommand(WithSteps(arguments, 8));
  ASSERT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_THAT(anew.err, Not(HasSubstr("are missing")));
}

TEST(Resume, BudgetsAndTheNumberOfStepsMayChange) {
  const Training training;
  const Arguments arguments = training.TrainInStore(kSteps) + Flags();
  const Ended first = RunCommand(WithSteps(arguments, 5));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended second = RunCommand(
      arguments + Arguments{"--resume", "--device-bytes", "1MiB", "--pinned-bytes", "2MiB"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(training.NumbersOf(second.json()), Uncut());
}

TEST(Resume, AFinishedRunHasNothingLeftToDo) {
  const Training training;
  const Ended first = RunCommand(training.TrainInStore(3));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended second = RunCommand(training.TrainInStore(3) + Arguments{"--resume"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.json()["steps_this_run"], 0);
  EXPECT_EQ(second.json()["final_loss"], first.json()["final_loss"]);
  EXPECT_EQ(second.json()["weights_hash"], first.json()["weights_hash"]);
}

TEST(Resume, CtrlCWithoutAStoreSaysThatNothingIsKept) {
  const Training training;
  Command command(training.Train(kEndless));
  AwaitLog(training, &command, 1);
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130);
  EXPECT_THAT(ended.err, HasSubstr("nothing is kept"));
}

}  // namespace
}  // namespace spillway::test
