// SPDX-License-Identifier: Apache-2.0
//
// train --resume --convert. Each state format is converted to each other one. The run continues in
// the new format with the same bits under any budgets. A kill leaves the old state or the new one.
// A refusal leaves the old state.

#include <signal.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/spillway/command.h"
#include "tests/spillway/same_numbers.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBefore = 3, kSteps = 6;

Arguments In(const std::string& format) {
  static const std::string precision = GridOf<std::string>({"fp16-amp", "bf16"}).back();
  return {"--precision", precision, "--state-format", format};
}

Ended Convert(const Training& training, const std::string& format, int64_t steps = kBefore) {
  return RunCommand(training.TrainInStore(steps) + In(format) + Arguments{"--resume", "--convert"});
}

// Returns the state tensors of a norm's parameter, without the parameter's name.
std::set<std::string> StateOf(const Training& training) {
  const std::string weight = "model.norm.weight";
  const Ended inspected = RunCommand({"inspect", training.store(), "--json"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  std::set<std::string> names;
  const Json json = inspected.json();
  for (const Json& tensor : json["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    if (name.starts_with(weight + "/")) names.insert(name.substr(weight.size() + 1));
  }
  return names;
}

std::set<std::string> ExpectedState(const std::string& format) {
  if (format == "compact") return {"compact"};
  if (format == "8bit") return {"master", "state8"};
  if (format == "bf16") return {"master", "exp_avg_bf16", "exp_avg_sq_bf16"};
  return {"master", "exp_avg", "exp_avg_sq"};
}

struct Pair {
  std::string from, to;
};

std::vector<Pair> Pairs() {
  const std::vector<std::string> formats = {"fp32", "bf16", "8bit", "compact"};
  std::vector<Pair> pairs;
  for (const std::string& from : formats) {
    std::vector<std::string> others = formats;
    std::erase(others, from);
    for (const std::string& to : GridOf<std::string>(others)) pairs.push_back({from, to});
  }
  return pairs;
}

class ConvertsEach : public ::testing::TestWithParam<Pair> {};

TEST_P(ConvertsEach, GoesOnInTheNewFormatWhateverTheBudgets) {
  const auto& [from, to] = GetParam();
  std::vector<Numbers> numbers;
  for (const bool is_tight : {false, true}) {
    const Training training;
    std::mt19937_64 unused;
    const Arguments run = training.TrainInStore(kBefore) + In(from);
    const Arguments tight = is_tight ? Budgets(run, "smallest", unused) : Arguments();
    const Ended first = RunCommand(run + tight);
    ASSERT_EQ(first.exit_code, 0) << first.err;
    // The smallest budgets of the other format may be smaller.
    const Arguments resume = training.TrainInStore(kBefore) + In(to);
    const Arguments budgets = is_tight ? Budgets(resume, "smallest", unused) : Arguments();
    const Ended converted = RunCommand(resume + budgets + Arguments{"--resume", "--convert"});
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    EXPECT_THAT(converted.err, HasSubstr("from " + from + " to " + to + ", as a commit"));
    EXPECT_EQ(StateOf(training), ExpectedState(to));
    if (from != "compact" && to != "compact") {
      EXPECT_THAT(converted.err, HasSubstr("master weights changed not at all"));
      EXPECT_EQ(converted.json()["weights_hash"].get<std::string>(),
                first.json()["weights_hash"].get<std::string>());
    }
    ASSERT_EQ(RunCommand({"fsck", training.store()}).exit_code, 0);
    const Ended ended =
        RunCommand(training.TrainInStore(kSteps) + In(to) + budgets + Arguments{"--resume"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    numbers.push_back(training.NumbersOf(ended.json()));
  }
  EXPECT_EQ(numbers[0], numbers[1]);
}

INSTANTIATE_TEST_SUITE_P(Formats, ConvertsEach, ::testing::ValuesIn(Pairs()),
                         [](const auto& of) { return of.param.from + "_" + of.param.to; });

// The state has three moments, each of which the note names.
TEST(Conversion, OfARuleWithThreeMomentsNamesEach) {
  for (const auto& [flags, names] :
       {std::pair(Arguments{"--amsgrad"}, "max_exp_avg_sq "),
        std::pair(Arguments{"--optimizer", "rmsprop", "--centered", "--momentum", "0.9"},
                  "grad_avg ")}) {
    const Training training;
    const Arguments run = training.TrainInStore(kBefore) + flags;
    ASSERT_EQ(RunCommand(run + In("fp32")).exit_code, 0);
    const Ended converted = RunCommand(run + In("compact") + Arguments{"--resume", "--convert"});
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    EXPECT_THAT(converted.err, HasSubstr(names));
    const Ended ended =
        RunCommand(training.TrainInStore(kSteps) + flags + In("compact") + Arguments{"--resume"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
}

// The kill comes at a random moment. A conversion afterwards, whether it is the first to finish or
// finds the new format, gives the same numbers.
TEST(Conversion, KilledItLeavesTheOldStateOrTheNew) {
  std::mt19937_64 random(Seed());
  std::optional<Numbers> expected;
  for (int round = 0; round < 6; ++round) {
    const Training training;
    ASSERT_EQ(RunCommand(training.TrainInStore(kBefore) + In("fp32")).exit_code, 0);
    if (expected) {
      Command command(training.TrainInStore(kBefore) + In("8bit") +
                      Arguments{"--resume", "--convert"});
      usleep(static_cast<useconds_t>(random() % 60'000));
      command.Signal(SIGKILL);
      command.Wait();
      const std::set<std::string> state = StateOf(training);
      EXPECT_TRUE(state == ExpectedState("fp32") || state == ExpectedState("8bit"));
      ASSERT_EQ(RunCommand({"fsck", training.store()}).exit_code, 0);
    }
    const Ended ended = Convert(training, "8bit", kSteps);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Numbers numbers = training.NumbersOf(ended.json());
    if (!expected) expected = numbers;
    EXPECT_EQ(numbers, *expected);
  }
}

TEST(Conversion, ASnapshotOfBeforeIsTheOldState) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(kBefore) + In("fp32")).exit_code, 0);
  ASSERT_EQ(RunCommand({"snapshot", "create", training.store(), "before"}).exit_code, 0);
  ASSERT_EQ(Convert(training, "compact", kSteps).exit_code, 0);
  ASSERT_EQ(RunCommand({"snapshot", "restore", training.store(), "before"}).exit_code, 0);
  EXPECT_EQ(StateOf(training), ExpectedState("fp32"));
  const Ended ended =
      RunCommand(training.TrainInStore(kSteps) + In("fp32") + Arguments{"--resume"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Training other;
  EXPECT_EQ(training.NumbersOf(ended.json()).weights_hash,
            RunCommand(other.Train(kSteps) + In("fp32")).json()["weights_hash"].get<std::string>());
}

TEST(Conversion, OfNothingChangesNothing) {
  const Training training;
  const Ended begun = Convert(training, "8bit");
  EXPECT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_THAT(begun.err, AllOf(HasSubstr("no commit yet"), Not(HasSubstr("converted"))));
  const Ended again = Convert(training, "8bit");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("is in 8bit already"));
}

TEST(Conversion, IsRefusedBeforeTheStoreIsTouched) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(kBefore) + In("fp32")).exit_code, 0);
  const auto refused = [&](const Arguments& flags) {
    const Ended ended = RunCommand(training.TrainInStore(kSteps) + flags);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_EQ(StateOf(training), ExpectedState("fp32"));
    return ended.err;
  };
  const Arguments resume = {"--resume", "--convert"};
  EXPECT_THAT(refused(In("8bit") + Arguments{"--convert"}), HasSubstr("give --resume too"));
  EXPECT_THAT(refused(In("8bit") + Arguments{"--resume"}), HasSubstr("add --convert"));
  EXPECT_THAT(refused(In("8bit") + Arguments{"--resume", "--batch", "2"}),
              AllOf(HasSubstr("--state-format was fp32"), Not(HasSubstr("--convert"))));
  EXPECT_THAT(refused(In("8bit") + resume + Arguments{"--batch", "2"}),
              HasSubstr("--batch was 1 in the store's run and is 2 now"));
  EXPECT_THAT(refused(In("8bit") + resume + Arguments{"--optimizer", "lion"}),
              HasSubstr("--optimizer was adamw"));
  EXPECT_THAT(refused(Arguments{"--state-format", "compact"} + resume), HasSubstr("compact"));
  // There is room for the new state twice, but not for the new state beside the old one.
  EXPECT_THAT(refused(In("compact") + resume + Arguments{"--store-bytes", "450KiB"}),
              AllOf(HasSubstr("--store-bytes"), HasSubstr("old state")));
}

}  // namespace
}  // namespace spillway::test
