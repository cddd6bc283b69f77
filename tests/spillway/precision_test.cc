// SPDX-License-Identifier: Apache-2.0
//
// `--precision bf16` and `--fp32` as a user sees them: the numbers are the same however the bytes
// move, which tensor is stored in which type, the bytes that a plan predicts, and what is refused.
// same_numbers_test and accumulation_test cover the ways to move bytes and the accumulation orders.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
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

constexpr int64_t kSteps = 6;

Numbers InMemory(const Arguments& flags) {
  const Training training;
  const Ended ended = RunCommand(training.Train(kSteps) + flags);
  EXPECT_EQ(ended.exit_code, 0) << Words(flags) << ended.err;
  EXPECT_EQ(ended.json()["skipped_this_run"], 0);
  return training.NumbersOf(ended.json());
}

// Returns the type of each of the store's tensors whose name begins with `prefix`.
std::map<std::string, std::string> TypesIn(const Training& training,
                                           const std::string& prefix = "") {
  const Ended inspected = RunCommand({"inspect", training.store(), "--json"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  std::map<std::string, std::string> types;
  const Json json = inspected.json();
  for (const Json& tensor : json["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    if (name.starts_with(prefix)) types[name] = tensor["description"]["dtype"].get<std::string>();
  }
  return types;
}

class MixedTypes : public ::testing::TestWithParam<Arguments> {};

// Runs within the smallest budgets, which the command's refusals name, and within random ones. Each
// run is stopped and resumed.
TEST_P(MixedTypes, GiveTheSameNumbersWithinAnyBudgetAndAcrossAResume) {
  std::mt19937_64 random(Seed());
  for (const Arguments& way :
       std::vector<Arguments>{{}, {"--accumulate", "3", "--checkpoint-activations", "off"}}) {
    const Arguments flags = GetParam() + way;
    const Numbers expected = InMemory(flags);
    for (const char* budgets : {"smallest", "random"}) {
      SCOPED_TRACE(Words(flags) + ", " + budgets);
      const Training training;
      Arguments arguments = training.TrainInStore(kSteps) + flags;
      arguments = arguments + Budgets(arguments, budgets, random);
      const Ended first = RunCommand(arguments + Arguments{"--stop-after", "3"});
      ASSERT_EQ(first.exit_code, 0) << first.err;
      const Ended ended = RunCommand(arguments + Arguments{"--resume"});
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_EQ(training.NumbersOf(ended.json()), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MixedTypes,
                         ::testing::ValuesIn(SampleOf<Arguments>(
                             {{"--precision", "bf16"},
                              {"--precision", "bf16", "--fp32", "*norm*"},
                              {"--precision", "bf16", "--fp32", "*embed*,*layers.1.mlp*"},
                              {"--precision", "bf16", "--grad-dtype", "fp32"},
                              {"--precision", "bf16", "--freeze", "*embed*", "--fp32",
                               "*embed*,*q_proj*", "--state-format", "8bit"},
                              {"--precision", "fp16-amp", "--loss-scale", "1024", "--fp32",
                               "*norm*,*embed*"}})));

// A step that follows a plan moves exactly the bytes that the plan predicts, also in mixed types.
TEST(Precision, StepsInMixedTypesMoveWhatTheirPlanForetold) {
  const Training training;
  std::mt19937_64 unused;
  Arguments arguments =
      training.TrainInStore(kSteps) +
      Arguments{"--precision", "bf16", "--fp32", "*embed*,*norm*", "--accumulate", "2"};
  arguments = arguments + Budgets(arguments, "smallest", unused);
  const Ended ended = RunCommand(arguments);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json plan = ended.json()["plan"];
  EXPECT_GE(plan["steps"], 2) << plan;
  EXPECT_EQ(plan["moved_bytes"], plan["planned_bytes"]) << plan;
}

TEST(Precision, EachGivesNumbersOfItsOwn) {
  std::map<std::string, std::string> seen;
  for (const Arguments& flags :
       std::vector<Arguments>{{},
                              {"--precision", "fp16-amp"},
                              {"--precision", "fp16-amp", "--fp32", "*norm*"},
                              {"--precision", "bf16"},
                              {"--precision", "bf16", "--fp32", "*norm*"},
                              {"--precision", "bf16", "--fp32", "*norm*,*embed*"},
                              {"--precision", "bf16", "--fp32", "*"},
                              {"--precision", "bf16", "--grad-dtype", "fp32"}}) {
    const auto [at, is_new] = seen.emplace(InMemory(flags).weights_hash, Words(flags));
    EXPECT_TRUE(is_new) << Words(flags) << " gives what" << at->second << " gives";
  }
}

TEST(Precision, Bf16HasMasterWeightsAndNoLossScale) {
  const Training training;
  const Ended ended =
      RunCommand(training.TrainInStore(3) +
                 Arguments{"--precision", "bf16", "--fp32", "*norm*", "--loss-scale", "1e30"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const Json& line : ReadLog(training.log())) {
    EXPECT_EQ(line["loss_scale"], 1);
    EXPECT_EQ(line["skipped"], false);
  }
  using Types = std::map<std::string, std::string>;
  EXPECT_EQ(TypesIn(training, "model.embed_tokens.weight"),
            (Types{{"model.embed_tokens.weight", "bf16"},
                   {"model.embed_tokens.weight/master", "f32"},
                   {"model.embed_tokens.weight/exp_avg", "f32"},
                   {"model.embed_tokens.weight/exp_avg_sq", "f32"}}));
  EXPECT_EQ(TypesIn(training, "model.norm.weight"),
            (Types{{"model.norm.weight", "f32"},
                   {"model.norm.weight/exp_avg", "f32"},
                   {"model.norm.weight/exp_avg_sq", "f32"}}));
}

// After sixty steps, the loss is within a fiftieth of the loss in fp32.
TEST(Precision, Bf16LearnsWhatFp32Learns) {
  const auto loss = [](const char* precision) {
    const Training training;
    const Ended ended =
        RunCommand(training.Train(60) + Arguments{"--batch", "4", "--precision", precision});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json()["final_loss"].get<double>();
  };
  const double expected = loss("fp32");
  EXPECT_NEAR(loss("bf16"), expected, 0.02 * expected);
}

// The model that a run saves and the export of its store are the same bytes: the fp32 master
// weights and, for a frozen parameter, the value in its own type. Evaluated in the same types, the
// saved model has the loss of the run's evaluation.
TEST(Precision, WhatBf16TrainedIsExportedFromRunAndStore) {
  for (const char* precision : {"bf16", "fp16-amp"}) {
    const Training training;
    const Arguments types = {"--precision", precision, "--fp32", "*norm*,*up_proj*"};
    const Ended ended =
        RunCommand(training.TrainInStore(3) + types +
                   Arguments{"--freeze", "*k_proj*,*up_proj*", "--save", training / "saved",
                             "--eval-every", "3", "--eval-batches", "4"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Ended exported =
        RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
    EXPECT_EQ(ReadFile(training / "exported/model.safetensors"),
              ReadFile(training / "saved/model.safetensors"));
    const Arguments eval = {"eval",  "--model", training / "saved", "--data", training.data(),
                            "--seq", "16",      "--batches",        "4",      "--threads",
                            "2",     "--json"};
    const Ended evaluated = RunCommand(eval + types);
    ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
    EXPECT_EQ(evaluated.json()["loss"], ended.json()["eval_loss"]);
    EXPECT_NE(RunCommand(eval).json()["loss"], ended.json()["eval_loss"]);
  }
}

TEST(Precision, PatternsOfFp32AreCheckedByEveryCommand) {
  const Training training;
  ASSERT_EQ(RunCommand(training.Train(1) + Arguments{"--save", training / "saved"}).exit_code, 0);
  const std::vector<Arguments> commands = {
      training.TrainInStore(1),
      {"eval", "--model", training / "saved", "--data", training.data(), "--seq", "16"},
      {"generate", "--model", training / "saved", "--tokens", "1,2", "--max-tokens", "1"}};
  for (const Arguments& command : commands) {
    const auto refused = [&](const Arguments& flags) {
      const Ended ended = RunCommand(command + flags);
      EXPECT_EQ(ended.exit_code, 2) << Words(command) << ended.err;
      return ended.err;
    };
    EXPECT_THAT(refused({"--precision", "bf16", "--fp32", "*norm*,*nrom*"}),
                AllOf(HasSubstr("--fp32: '*nrom*' matches none of the model's 20 parameters"),
                      Not(HasSubstr("step 1/"))));
    EXPECT_THAT(refused({"--fp32", "*norm*"}), HasSubstr("--fp32 does nothing under"));
    EXPECT_THAT(refused({"--precision", "bf16", "--fp32", "a,,b"}), HasSubstr("empty part"));
    EXPECT_EQ(RunCommand(command + Arguments{"--precision", "bf16", "--fp32", "*norm*"}).exit_code,
              0);
  }
}

TEST(Precision, GradientsHaveTheirWeightsTypeOrFp32) {
  const Training training;
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--precision", "bf16", "--grad-dtype", "fp16"}, "fp16 needs --precision fp16-amp"},
      {{"--precision", "fp16-amp", "--grad-dtype", "bf16"}, "bf16 needs --precision bf16"},
      {{"--grad-dtype", "bf16"}, "bf16 needs --precision bf16"}};
  for (const auto& [flags, words] : cases) {
    const Ended ended = RunCommand(training.Train(1) + flags);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("--grad-dtype " + words));
  }
}

TEST(Precision, AResumeInOtherTypesIsRefused) {
  const Training training;
  const Arguments types = {"--precision", "bf16", "--fp32", "*norm*"};
  ASSERT_EQ(RunCommand(training.TrainInStore(1) + types).exit_code, 0);
  const Arguments resume = training.TrainInStore(2) + Arguments{"--resume"};
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{}, "--precision was bf16 in the store's run and is fp32 now"},
      {{"--precision", "fp16-amp", "--fp32", "*norm*"}, "--precision was bf16"},
      {{"--precision", "bf16"}, "--fp32 was *norm* in the store's run and is (nothing) now"},
      {{"--precision", "bf16", "--fp32", "*norm*,*embed*"}, "is *norm*,*embed* now"},
      {types + Arguments{"--grad-dtype", "fp32"}, "--grad-dtype was bf16"}};
  for (const auto& [flags, words] : cases) {
    const Ended ended = RunCommand(resume + flags);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(words));
  }
  EXPECT_EQ(RunCommand(resume + types).exit_code, 0);
}

}  // namespace
}  // namespace spillway::test
