// SPDX-License-Identifier: Apache-2.0
//
// The flags for update rules, state formats and groups of parameters. Each flag changes the
// numbers. The numbers do not depend on how the bytes move. Impossible combinations are refused
// with an explanation.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/spillway/command.h"
#include "tests/spillway/same_numbers.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSteps = 6;

// The variants of rules that have flags of their own.
std::vector<Arguments> Variants() {
  return {{"--amsgrad"},
          {"--optimizer", "adam", "--amsgrad", "--maximize"},
          {"--optimizer", "sgd", "--momentum", "0.9", "--nesterov"},
          {"--optimizer", "sgd", "--momentum", "0.9", "--dampening", "0.5"},
          {"--optimizer", "rmsprop", "--centered"},
          {"--optimizer", "rmsprop", "--momentum", "0.9", "--centered"}};
}

// Every pair of rule and format, also with momentum where it is optional.
std::vector<Arguments> Pairs() {
  std::vector<Arguments> pairs;
  for (const char* format : {"fp32", "bf16", "8bit"}) {
    for (const char* rule : {"adamw", "adam", "rmsprop", "lion", "lamb", "lars"})
      pairs.push_back({"--optimizer", rule, "--state-format", format});
    for (const char* rule : {"sgd", "rmsprop"})
      pairs.push_back({"--optimizer", rule, "--momentum", "0.9", "--state-format", format});
    for (const Arguments& variant : Variants())
      pairs.push_back(variant + Arguments{"--state-format", format});
  }
  pairs.push_back({"--optimizer", "sgd"});
  pairs.push_back({"--optimizer", "lars", "--momentum", "0"});
  pairs.push_back({"--optimizer", "adafactor"});
  return pairs;
}

// The pairs with compact state. It needs 16-bit weights, and is the only format besides fp32 that
// sgd and lars without momentum accept.
std::vector<Arguments> CompactPairs() {
  std::vector<Arguments> pairs;
  for (const char* rule : {"adamw", "adam", "rmsprop", "lion", "sgd", "lamb", "lars"})
    pairs.push_back({"--optimizer", rule, "--state-format", "compact"});
  for (const char* rule : {"sgd", "rmsprop"})
    pairs.push_back({"--optimizer", rule, "--momentum", "0.9", "--state-format", "compact"});
  for (const Arguments& variant : Variants())
    pairs.push_back(variant + Arguments{"--state-format", "compact"});
  pairs.push_back({"--optimizer", "lars", "--momentum", "0", "--state-format", "compact"});
  return pairs;
}

// Returns the numbers of a run in memory.
Numbers InMemory(const Arguments& flags, int64_t steps = kSteps) {
  const Training training;
  const Ended ended = RunCommand(training.Train(steps) + flags);
  EXPECT_EQ(ended.exit_code, 0) << Words(flags) << ended.err;
  return training.NumbersOf(ended.json());
}

// Returns the numbers of a run from a store within the smallest budgets, stopped in the middle and
// resumed.
Numbers FromStore(const Training& training, const Arguments& flags) {
  std::mt19937_64 unused;
  Arguments arguments = training.TrainInStore(kSteps) + flags;
  arguments = arguments + Budgets(arguments, "smallest", unused);
  const Ended first = RunCommand(arguments + Arguments{"--stop-after", "3"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  const Ended ended = RunCommand(arguments + Arguments{"--resume"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return training.NumbersOf(ended.json());
}

// Returns the names of the store's tensors that begin with `prefix`.
std::set<std::string> TensorsOf(const Training& training, const std::string& prefix) {
  const Ended inspected = RunCommand({"inspect", training.store(), "--json"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  std::set<std::string> names;
  const Json json = inspected.json();
  for (const Json& tensor : json["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    if (name.starts_with(prefix)) names.insert(name);
  }
  return names;
}

TEST(Optimizer, EveryFlagChangesTheNumbers) {
  const std::vector<Arguments> more = {{"--betas", "0.8,0.95"},
                                       {"--eps", "1e-3"},
                                       {"--weight-decay", "0.5"},
                                       {"--no-decay", "*norm*,*embed*", "--weight-decay", "0.5"},
                                       {"--lr-for", "*layers.1.*=0.25"},
                                       {"--lr-for", "*layers.1.*=0.5"},
                                       {"--freeze", "*q_proj*"},
                                       {"--freeze", "model.layers.[01].mlp.*"},
                                       {"--lr-scale", "linear", "--lr-batch", "3"},
                                       {"--lr-scale", "sqrt", "--lr-batch", "3"},
                                       {"--maximize"},
                                       {"--optimizer", "lion", "--maximize"},
                                       {"--optimizer", "adafactor", "--maximize"},
                                       {"--optimizer", "sgd", "--momentum", "0.5"},
                                       {"--optimizer", "sgd", "--weight-decay", "0.5"},
                                       {"--optimizer", "lion", "--weight-decay", "0.5"},
                                       {"--optimizer", "lamb", "--weight-decay", "0.5"},
                                       {"--optimizer", "lamb", "--eps", "1e-3"},
                                       {"--optimizer", "lamb", "--betas", "0.8,0.999"},
                                       {"--optimizer", "lars", "--weight-decay", "0.5"},
                                       {"--optimizer", "lars", "--trust-coefficient", "0.01"},
                                       {"--optimizer", "adafactor", "--weight-decay", "0.5"},
                                       {"--optimizer", "adafactor", "--eps", "1e-2"},
                                       {"--optimizer", "adafactor", "--eps2", "1"},
                                       {"--optimizer", "adafactor", "--beta2-decay", "0.5"},
                                       {"--optimizer", "adafactor", "--update-clip", "0.5"}};
  std::map<std::string, std::string> seen;
  std::vector<Arguments> all = SampleOf(Pairs());
  for (const Arguments& flags : SampleOf(more)) all.push_back(flags);
  for (const Arguments& flags : SampleOf(CompactPairs()))
    all.push_back(flags + Arguments{"--precision", "fp16-amp"});
  for (const Arguments& flags : all) {
    const auto [at, is_new] = seen.emplace(InMemory(flags).weights_hash, Words(flags));
    EXPECT_TRUE(is_new) << Words(flags) << " gives what" << at->second << " gives";
  }
}

TEST(Optimizer, TheDefaultIsAdamWInFp32) {
  EXPECT_EQ(InMemory({}), InMemory({"--optimizer", "adamw", "--state-format", "fp32", "--betas",
                                    "0.9,0.95", "--eps", "1e-8", "--weight-decay", "0.01"}));
  EXPECT_EQ(InMemory({"--optimizer", "lion"}),
            InMemory({"--optimizer", "lion", "--betas", "0.9,0.99", "--weight-decay", "0"}));
}

TEST(Optimizer, WhatIsNotGivenIsThePapersOrPyTorchs) {
  EXPECT_EQ(InMemory({"--optimizer", "lamb"}),
            InMemory({"--optimizer", "lamb", "--betas", "0.9,0.999", "--eps", "1e-6",
                      "--weight-decay", "0.01"}));
  EXPECT_EQ(InMemory({"--optimizer", "lars"}),
            InMemory({"--optimizer", "lars", "--momentum", "0.9", "--trust-coefficient", "0.001",
                      "--weight-decay", "0"}));
  EXPECT_EQ(
      InMemory({"--optimizer", "adafactor"}),
      InMemory({"--optimizer", "adafactor", "--eps", "1.1920928955078125e-07", "--eps2", "0.001",
                "--beta2-decay", "0.8", "--update-clip", "1", "--weight-decay", "0"}));
}

class EachPair : public ::testing::TestWithParam<Arguments> {};

TEST_P(EachPair, GivesTheSameNumbersFromAStoreAndAcrossAResume) {
  // The default rule runs in both precisions, because no grid combines these with all formats.
  const bool is_adamw = GetParam()[1] == "adamw";
  std::vector<std::string> both = {"fp32", "fp16-amp"};
  if (GetParam().back() == "compact") both = {"fp16-amp", "bf16"};
  for (const std::string& precision : is_adamw ? both : GridOf<std::string>(both)) {
    const Arguments flags =
        GetParam() + Arguments{"--precision", precision, "--weight-decay", "0.1"};
    SCOPED_TRACE(Words(flags));
    EXPECT_EQ(FromStore(Training(), flags), InMemory(flags));
  }
}

INSTANTIATE_TEST_SUITE_P(RulesAndFormats, EachPair, ::testing::ValuesIn(SampleOf(Pairs())));
INSTANTIATE_TEST_SUITE_P(Compact, EachPair, ::testing::ValuesIn(SampleOf(CompactPairs())));

TEST(Optimizer, KilledBetweenCommitsAllFormatsContinueFromTheLast) {
  for (const Arguments& of :
       SampleOf<Arguments>({{"--state-format", "fp32"},
                            {"--state-format", "bf16"},
                            {"--state-format", "8bit"},
                            {"--state-format", "compact"},
                            {"--optimizer", "lamb"},
                            {"--optimizer", "lars"},
                            {"--optimizer", "lars", "--state-format", "compact"},
                            {"--optimizer", "adafactor"}})) {
    const Arguments flags = of + Arguments{"--precision", "fp16-amp"};
    SCOPED_TRACE(Words(flags));
    const Training training;
    Command command(training.TrainInStore(1'000'000) + flags + Arguments{"--commit-every", "2"});
    while (!command.has_ended() && ReadLog(training.log()).size() < 5) usleep(2000);
    command.Signal(SIGKILL);
    ASSERT_EQ(command.Wait().exit_code, -SIGKILL);
    const auto steps = static_cast<int64_t>(ReadLog(training.log()).size()) + 4;
    const Ended ended = RunCommand(training.TrainInStore(steps) + flags + Arguments{"--resume"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_LT(ended.json()["steps_this_run"], steps) << "it did not start again";
    EXPECT_EQ(training.NumbersOf(ended.json()), InMemory(flags, steps));
  }
}

// Each parameter has one tensor of state bytes beside its weight and master weight. The export of
// the store equals the file that the run saves.
TEST(EightBit, RestsInOneTensorAndExports) {
  const Training training;
  const Arguments flags = {"--state-format", "8bit", "--precision", "fp16-amp"};
  const Ended ended =
      RunCommand(training.TrainInStore(3) + flags + Arguments{"--save", training / "saved"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(TensorsOf(training, "model.norm.weight"),
            (std::set<std::string>{"model.norm.weight", "model.norm.weight/master",
                                   "model.norm.weight/state8"}));
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(ReadFile(training / "exported/model.safetensors"),
            ReadFile(training / "saved/model.safetensors"));
}

// Each parameter has one tensor of state bytes beside its weight, and no master weight. Exports and
// hashes join the weight and its residuals.
TEST(Compact, RestsInOneTensorBesideTheWeightAndExports) {
  const Training training;
  const Arguments flags = {"--state-format", "compact", "--precision", "fp16-amp"};
  const Ended ended =
      RunCommand(training.TrainInStore(3) + flags + Arguments{"--save", training / "saved"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(TensorsOf(training, "model.norm.weight"),
            (std::set<std::string>{"model.norm.weight", "model.norm.weight/compact"}));
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(ReadFile(training / "exported/model.safetensors"),
            ReadFile(training / "saved/model.safetensors"));
  const Ended evaluated = RunCommand({"eval", "--model", training / "exported", "--data",
                                      training.data(), "--seq", "16", "--batches", "4", "--json"});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
}

// Flips a bit in one byte of every hundred, so that every tensor is damaged.
TEST(Compact, FlippedBytesOfItsStateAreNamedAndNeverDecoded) {
  const Training training;
  const Arguments flags = {"--state-format", "compact", "--precision", "fp16-amp"};
  ASSERT_EQ(RunCommand(training.TrainInStore(2) + flags).exit_code, 0);
  const std::string segment = training.store() + "/spillway-segment-000000";
  std::string bytes = ReadFile(segment);
  for (size_t at = 50; at < bytes.size(); at += 100) bytes[at] = static_cast<char>(bytes[at] ^ 4);
  WriteFile(segment, bytes);
  const Ended checked = RunCommand({"fsck", training.store(), "--json"});
  EXPECT_EQ(checked.exit_code, 4) << checked.err;
  std::set<std::string> named;
  const Json json = checked.json();
  for (const Json& finding : json["findings"]) named.insert(finding["tensor"].dump());
  EXPECT_TRUE(named.contains("\"model.layers.0.mlp.up_proj.weight/compact\"")) << checked.out;
  const Ended resumed = RunCommand(training.TrainInStore(3) + flags + Arguments{"--resume"});
  EXPECT_EQ(resumed.exit_code, 4) << resumed.err;
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  EXPECT_EQ(exported.exit_code, 4) << exported.err;
  EXPECT_THAT(exported.err, HasSubstr("does not match its checksum"));
}

// The initial weights keep more bits than fp16 holds: an fp32 value such as 0.02 is not rounded to
// fp16 before the first step.
TEST(Compact, BeginsWithMoreOfTheWeightsThanTheirHalves) {
  const auto saved = [](const Arguments& flags) {
    const Training training;
    const Ended ended = RunCommand(
        training.Train(1) + flags +
        Arguments{"--lr-for", "*=0", "--precision", "fp16-amp", "--save", training / "saved"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::vector<float> values(64 * 32);  // the embedding, which is first in the file
    if (ended.exit_code != 0) return values;
    const std::string bytes = ReadFile(training / "saved/model.safetensors");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    std::memcpy(values.data(), bytes.data() + 8 + header_bytes, 4 * values.size());
    return values;
  };
  const std::vector<float> full = saved({}), compact = saved({"--state-format", "compact"});
  double largest = 0;
  for (size_t i = 0; i < full.size(); ++i)
    largest = std::max(largest, std::fabs(double{full[i]} - compact[i]) / std::fabs(full[i]));
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 0x1.0p-18);  // rounding to fp16 would give up to 2^-11
}

// Beside its master weight, a matrix has the mean of the squared gradients for each row and each
// column. A vector has it for each element.
TEST(Adafactor, KeepsRowsAndColumnsAndExports) {
  const Training training;
  const Arguments flags = {"--optimizer", "adafactor", "--precision", "fp16-amp"};
  const Ended ended =
      RunCommand(training.TrainInStore(3) + flags + Arguments{"--save", training / "saved"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::string matrix = "model.embed_tokens.weight", vector = "model.norm.weight";
  EXPECT_EQ(TensorsOf(training, matrix),
            (std::set<std::string>{matrix, matrix + "/master", matrix + "/row_var",
                                   matrix + "/col_var"}));
  EXPECT_EQ(TensorsOf(training, vector),
            (std::set<std::string>{vector, vector + "/master", vector + "/variance"}));
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(ReadFile(training / "exported/model.safetensors"),
            ReadFile(training / "saved/model.safetensors"));
}

// After sixty steps at a suitable learning rate, the loss of each rule is below 0.9 of the first.
TEST(RulesWithNorms, Learn) {
  for (const Arguments& flags : {Arguments{"--optimizer", "lamb"},
                                 {"--optimizer", "lars", "--lr-for", "*=1000"},
                                 {"--optimizer", "adafactor", "--lr-for", "*=5"}}) {
    const Training training;
    const Ended ended = RunCommand(training.Train(60) + Arguments{"--batch", "4"} + flags);
    ASSERT_EQ(ended.exit_code, 0) << Words(flags) << ended.err;
    const double first = ReadLog(training.log()).front()["loss"].get<double>();
    EXPECT_LT(ended.json()["final_loss"].get<double>(), 0.9 * first) << Words(flags);
  }
}

// After sixty steps, the loss of each format is within a fiftieth of the loss with fp32 state.
TEST(Formats, LearnWhatFp32Learns) {
  const auto loss = [](const char* format, const char* precision) {
    const Training training;
    const Ended ended =
        RunCommand(training.Train(60) +
                   Arguments{"--batch", "4", "--state-format", format, "--precision", precision});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json()["final_loss"].get<double>();
  };
  const double expected = loss("fp32", "fp32");
  for (const char* format : {"bf16", "8bit"})
    EXPECT_NEAR(loss(format, "fp32"), expected, 0.02 * expected);
  const double expected_of_halves = loss("fp32", "fp16-amp");
  EXPECT_NEAR(loss("compact", "fp16-amp"), expected_of_halves, 0.02 * expected_of_halves);
}

// --- Frozen parameters ---

struct Frozen {
  bool tied;
  const char* precision;
  const char* patterns;
};

class Freeze : public ::testing::TestWithParam<Frozen> {
 protected:
  // Writes a model whose head is tied to the embedding or separate, as the parameter says.
  static void Prepare(const Training& training) {
    nlohmann::json config = TinyConfig();
    config["tie_word_embeddings"] = GetParam().tied;
    WriteTinyModel(training.model(), config);
  }
};

TEST_P(Freeze, GivesTheSameNumbersHoweverMicroBatchesPass) {
  const Arguments flags = {"--freeze",           GetParam().patterns, "--precision",
                           GetParam().precision, "--accumulate",      "2"};
  SCOPED_TRACE(Words(flags));
  const Training in_memory;
  Prepare(in_memory);
  const Ended ended = RunCommand(in_memory.Train(kSteps) + flags);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* order : {"micro-batch", "layer"}) {
    const Training training;
    Prepare(training);
    EXPECT_EQ(FromStore(training, flags + Arguments{"--accumulation-order", order}),
              in_memory.NumbersOf(ended.json()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, Freeze,
    ::testing::ValuesIn(SampleOf<Frozen>({{true, "fp16-amp", "*embed*"},
                                          {true, "fp32", "*layers.0.*,*norm*"},
                                          {false, "fp32", "*embed*"},
                                          {false, "fp16-amp", "lm_head.weight"},
                                          {false, "fp16-amp", "*embed*,lm_head*"}})));

TEST(FreezeInAStore, KeepsTheWeightAloneAndExportsIt) {
  const Training training;
  const Arguments flags = {"--freeze", "*embed*", "--precision", "fp16-amp"};
  const Ended ended =
      RunCommand(training.TrainInStore(3) + flags + Arguments{"--save", training / "saved"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(TensorsOf(training, "model.embed_tokens.weight"),
            std::set<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(TensorsOf(training, "model.norm.weight").size(), 4U);
  const Ended exported =
      RunCommand({"snapshot", "export", training.store(), "--save", training / "exported"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(ReadFile(training / "exported/model.safetensors"),
            ReadFile(training / "saved/model.safetensors"));
}

TEST(FreezeInAStore, WritesNothingOfWhatIsFrozen) {
  const auto written = [](const Arguments& flags) {
    const Training training;
    const Ended ended = RunCommand(training.TrainInStore(4) + flags +
                                   Arguments{"--commit-every", "1", "--calibrate", "off"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json()["written_bytes"]["nvme"].get<uint64_t>();
  };
  // Everything but one norm is frozen. Only the first of the four commits writes frozen weights.
  const uint64_t bytes = written({"--freeze", "*layers*,*embed*"});
  EXPECT_LT(bytes, written({}) / 8);
}

// --- What is refused ---

TEST(Optimizer, AResumeUnderAnotherRuleNamesItFirst) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(1)).exit_code, 0);
  const Arguments resume = training.TrainInStore(2) + Arguments{"--resume"};
  const auto refused = [&](const Arguments& flags) {
    const Ended ended = RunCommand(resume + flags);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    return ended.err;
  };
  EXPECT_THAT(refused({"--optimizer", "lion", "--batch", "2"}),
              AllOf(HasSubstr("--optimizer was adamw"), HasSubstr("is lion now")));
  EXPECT_THAT(refused({"--state-format", "bf16", "--batch", "2"}),
              AllOf(HasSubstr("--state-format was fp32"), HasSubstr("is bf16 now")));
  EXPECT_THAT(refused({"--state-format", "8bit"}), HasSubstr("is 8bit now"));
  EXPECT_THAT(refused({"--optimizer", "lamb"}), HasSubstr("is lamb now"));
  EXPECT_THAT(refused({"--optimizer", "adafactor"}), HasSubstr("is adafactor now"));
  EXPECT_THAT(refused({"--state-format", "compact", "--precision", "fp16-amp"}),
              AllOf(HasSubstr("--state-format was fp32"), HasSubstr("is compact now")));
  EXPECT_THAT(refused({"--freeze", "*norm*", "--batch", "2"}), HasSubstr("--batch was 1"));
  EXPECT_THAT(refused({"--freeze", "*norm*"}), HasSubstr("is *norm* now"));
  EXPECT_THAT(refused({"--lr-for", "*norm*=0.3333333333333333"}), HasSubstr("=0.3333333333333333"));
  EXPECT_THAT(refused({"--no-decay", "*norm*"}), HasSubstr("--no-decay was (nothing)"));
  EXPECT_THAT(refused({"--lr-scale", "sqrt", "--lr-batch", "8"}), HasSubstr("--lr-scale was"));
  EXPECT_EQ(RunCommand(resume).exit_code, 0);
}

struct Bad {
  Arguments flags;
  std::string words;
};

TEST(Optimizer, AResumeWithAnotherVariantNamesItsFlag) {
  const std::vector<std::pair<Arguments, std::vector<Bad>>> all = {
      {{"--optimizer", "sgd", "--momentum", "0.9", "--nesterov"},
       {{{"--optimizer", "sgd", "--momentum", "0.9"}, "--nesterov was on"},
        {{"--optimizer", "sgd", "--momentum", "0.9", "--nesterov", "--maximize"},
         "--maximize was off in the store's run and is on now"},
        {{"--optimizer", "sgd", "--momentum", "0.9", "--dampening", "0.5"},
         "--dampening was 0 in the store's run and is 0.5 now"}}},
      {{"--amsgrad"}, {{{}, "--amsgrad was on in the store's run and is off now"}}},
      {{"--optimizer", "rmsprop"},
       {{{"--optimizer", "rmsprop", "--centered"}, "--centered was off"}}}};
  for (const auto& [flags, others] : SampleOf(all)) {
    const Training training;
    ASSERT_EQ(RunCommand(training.TrainInStore(1) + flags).exit_code, 0);
    const Arguments resume = training.TrainInStore(2) + Arguments{"--resume"};
    for (const Bad& other : others) {
      const Ended ended = RunCommand(resume + other.flags);
      EXPECT_EQ(ended.exit_code, 2) << ended.err;
      EXPECT_THAT(ended.err, HasSubstr(other.words));
    }
    EXPECT_EQ(RunCommand(resume + flags).exit_code, 0);
  }
}

TEST(Optimizer, MaximizeRaisesTheLoss) {
  const auto last_loss = [](const Arguments& flags) {
    const Training training;
    const Ended ended = RunCommand(training.Train(kSteps) + flags);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ReadLog(training.log()).back()["loss"].get<double>();
  };
  EXPECT_GT(last_loss({"--maximize"}), last_loss({}) + 0.01);
}

TEST(Optimizer, WhatCannotBeIsRefusedBeforeAStoreIsMade) {
  const std::vector<Bad> all = {
      {{"--optimizer", "sgd", "--state-format", "bf16"},
       "--state-format: sgd without momentum keeps no state that could be bf16; use fp32, or "
       "compact"},
      {{"--optimizer", "sgd", "--state-format", "8bit"},
       "--state-format: sgd without momentum keeps no state that could be 8bit; use fp32, or "
       "compact"},
      {{"--state-format", "compact"},
       "--state-format: compact keeps the rest of 16-bit weights, and --precision fp32 has none; "
       "use --precision fp16-amp or bf16, or another format"},
      {{"--state-format", "compact", "--precision", "bf16", "--fp32", "*norm*"},
       "--state-format: compact keeps the rest of 16-bit weights, and --fp32 makes others"},
      {{"--optimizer", "sgd", "--betas", "0.9,0.99"}, "--betas: sgd has none"},
      {{"--optimizer", "rmsprop", "--betas", "0.9,0.99"}, "one of adamw, adam, lion and lamb"},
      {{"--optimizer", "lars", "--momentum", "0", "--state-format", "bf16"},
       "--state-format: lars without momentum keeps no state that could be bf16; use fp32, or "
       "compact"},
      {{"--optimizer", "adafactor", "--state-format", "8bit"},
       "--state-format: adafactor's state is small and kept in fp32 alone, not in 8bit"},
      {{"--optimizer", "adafactor", "--state-format", "compact", "--precision", "fp16-amp"},
       "--state-format: adafactor's state is small and kept in fp32 alone, not in compact"},
      {{"--optimizer", "adafactor", "--eps", "1e-30"}, "--eps: the square of 1e-30"},
      {{"--optimizer", "adafactor", "--momentum", "0.9"}, "--momentum: adafactor has none"},
      {{"--optimizer", "lars", "--eps", "1e-6"}, "--eps: lars has none"},
      {{"--optimizer", "lamb", "--trust-coefficient", "0.1"}, "--trust-coefficient: lamb has none"},
      {{"--eps2", "0.1"}, "--eps2: adamw has none; leave it out, or use one of adafactor"},
      {{"--beta2-decay", "0.1"}, "--beta2-decay: adamw has none"},
      {{"--update-clip", "2"}, "--update-clip: adamw has none"},
      {{"--optimizer", "lion", "--eps", "1e-6"}, "--eps: lion has none"},
      {{"--momentum", "0.9"},
       "--momentum: adamw has none; leave it out, or use one of sgd, rmsprop and "},
      {{"--optimizer", "lion", "--amsgrad"},
       "--amsgrad: lion has none; leave it out, or use one of adamw and adam"},
      {{"--nesterov"}, "--nesterov: adamw has none; leave it out, or use one of sgd"},
      {{"--optimizer", "rmsprop", "--dampening", "0.5"}, "--dampening: rmsprop has none"},
      {{"--optimizer", "sgd", "--centered"}, "--centered: sgd has none"},
      {{"--optimizer", "sgd", "--nesterov"},
       "--nesterov needs a momentum: add --momentum NUMBER, as --momentum 0.9"},
      {{"--optimizer", "sgd", "--momentum", "0.9", "--nesterov", "--dampening", "0.5"},
       "--nesterov needs a dampening of 0: leave one of the two out"},
      {{"--optimizer", "sgd", "--dampening", "0.5"},
       "--dampening does nothing without --momentum NUMBER"},
      {{"--eps", "1e-300"}, "--eps: 1e-300 is 0 in single precision"},
      {{"--freeze", "lm_head*"}, "--freeze: 'lm_head*' matches none of the model's 20 parameters"},
      {{"--freeze", "*norm*,*nrom*"}, "--freeze: '*nrom*' matches none"},
      {{"--no-decay", "bias"}, "--no-decay: 'bias' matches none"},
      {{"--lr-for", "bias=2"}, "--lr-for: 'bias' matches none"},
      {{"--freeze", "*"}, "--freeze leaves nothing to train"},
      {{"--lr-scale", "linear"}, "--lr-scale needs --lr-batch N"},
      {{"--lr-batch", "8"}, "--lr-batch does nothing without --lr-scale"}};
  const Training training;
  for (const Bad& bad : all) {
    const Ended ended = RunCommand(training.TrainInStore(1) + bad.flags);
    EXPECT_EQ(ended.exit_code, 2) << Words(bad.flags) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(bad.words));
    EXPECT_THAT(ended.err, Not(HasSubstr("step 1/")));
  }
}

TEST(Optimizer, TheScaleOfTheLearningRateIsStatedAndApplied) {
  const Training training;
  const Ended ended =
      RunCommand(training.Train(2) + Arguments{"--lr-scale", "linear", "--lr-batch", "4", "--batch",
                                               "2", "--accumulate", "6"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("learning rate 0.03: 0.01 times 3, as a step has 12 windows"));
  EXPECT_DOUBLE_EQ(ReadLog(training.log()).front()["lr"].get<double>(), 0.03);
}

}  // namespace
}  // namespace spillway::test
