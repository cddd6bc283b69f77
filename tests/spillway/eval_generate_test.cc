// SPDX-License-Identifier: Apache-2.0
//
// `spillway eval` and `spillway generate`: their output, their scratch stores, and the models they
// refuse.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A training folder with a model that was trained for two steps and exported.
class Exported : public ::testing::Test {
 protected:
  void SetUp() override {
    const Ended ended = RunCommand(training_.Train(2) + Arguments{"--save", model()});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }

  std::string model() const { return training_ / "exported"; }
  std::string weights() const { return model() + "/model.safetensors"; }
  std::string config() const { return model() + "/config.json"; }
  Arguments EvalArguments(const std::string& windows = "3") const {
    return {"eval",  "--model", model(),     "--data", training_.data(),
            "--seq", "16",      "--batches", windows,  "--json"};
  }
  Arguments GenerateArguments(const std::string& tokens = "1,8,43") const {
    return {"generate",     "--model", model(), "--tokens", tokens,
            "--max-tokens", "5",       "--seq", "16",       "--json"};
  }
  Arguments Tiers() const {
    return {"--store", training_ / "scratch", "--device-bytes", "1MiB", "--pinned-bytes", "2MiB"};
  }

  Training training_;
};

using Eval = Exported;
using Generate = Exported;
using BadModel = Exported;

TEST_F(Eval, GivesTheSameLossThroughAStoreAndLeavesNothingBehind) {
  const Ended memory = RunCommand(EvalArguments());
  ASSERT_EQ(memory.exit_code, 0) << memory.err;
  EXPECT_EQ(memory.json()["v"], 1);
  EXPECT_EQ(memory.json()["windows"], 3);
  const Ended tiers = RunCommand(EvalArguments() + Tiers());
  ASSERT_EQ(tiers.exit_code, 0) << tiers.err;
  EXPECT_EQ(tiers.json()["loss"], memory.json()["loss"]);
  EXPECT_FALSE(std::filesystem::exists(training_ / "scratch"));
}

TEST_F(Eval, SaysThatFlagsOfAStoreDoNothingWithoutOne) {
  const Ended ended = RunCommand(EvalArguments() + Arguments{"--io", "posix"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("do nothing without --store"));
  EXPECT_THAT(RunCommand(EvalArguments() + Tiers() + Arguments{"--io", "posix"}).err,
              Not(HasSubstr("do nothing")));
}

TEST_F(Eval, LeavesWhatWasInTheFolder) {
  const std::string scratch = training_ / "scratch";
  std::filesystem::create_directories(scratch);
  WriteFile(scratch + "/mine", "untouched");
  const Ended ended = RunCommand(EvalArguments() + Tiers());
  EXPECT_EQ(ReadFile(scratch + "/mine"), "untouched");
  const auto entries = std::filesystem::directory_iterator(scratch);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << ended.err;
}

TEST_F(Eval, TakesWhatThereIsOfAShortText) {
  const Ended ended = RunCommand(EvalArguments("1000000"));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["windows"], (4000 - 1) / 16);
  EXPECT_THAT(ended.err, HasSubstr("all were taken"));
}

TEST_F(Eval, SixteenBitsAreCloseToFp32) {
  const double expected = RunCommand(EvalArguments()).json()["loss"].get<double>();
  for (const char* precision : {"fp16-amp", "bf16"}) {
    const Ended ended = RunCommand(EvalArguments() + Arguments{"--precision", precision});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_NEAR(ended.json()["loss"].get<double>(), expected, 0.01);
    const Ended tiers = RunCommand(EvalArguments() + Tiers() + Arguments{"--precision", precision});
    ASSERT_EQ(tiers.exit_code, 0) << tiers.err;
    EXPECT_EQ(tiers.json()["loss"], ended.json()["loss"]);
  }
}

TEST_F(Eval, AModelThatOverflowsHasNoLoss) {
  std::string file = ReadFile(weights());
  // The norm before the last MLP, whose outputs then do not fit fp16. The MLP's three matrices and
  // the final norm follow it in the file.
  const std::vector<float> norm(32, 60'000);
  const size_t from_the_end = (32 + 3 * 48 * 32 + 32) * sizeof(float);
  std::memcpy(file.data() + file.size() - from_the_end, norm.data(), 32 * sizeof(float));
  WriteFile(weights(), file);
  for (const char* precision : {"fp32", "bf16"}) {
    const Ended ended = RunCommand(EvalArguments() + Arguments{"--precision", precision});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  const Ended ended = RunCommand(EvalArguments() + Arguments{"--precision", "fp16-amp"});
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("is not finite: the weights are broken, or overflow in "
                                   "this precision; try bf16 or fp32"));
  EXPECT_THAT(ended.out, IsEmpty());
}

TEST_F(Generate, PrintsNewTokensOnly) {
  const Ended ended = RunCommand(GenerateArguments());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(json["v"], 1);
  ASSERT_TRUE(json["tokens"].is_array()) << ended.out;
  EXPECT_LE(json["tokens"].size(), 5U);
  for (const Json& token : json["tokens"]) EXPECT_LT(token.get<int>(), kTinyVocabulary);
  EXPECT_TRUE(json["finish_reason"] == "length" || json["finish_reason"] == "eos");
}

TEST_F(Generate, TheSeedDecidesAndAFileIsAsGoodAsAFlag) {
  const Arguments sampling = {"--temperature", "1.5", "--top-k", "20", "--seed", "3"};
  const Ended first = RunCommand(GenerateArguments() + sampling);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(RunCommand(GenerateArguments() + sampling).out, first.out);
  WriteFile(training_ / "prompt", "1 8\n43\n");
  Arguments from_file = GenerateArguments(training_ / "prompt") + sampling;
  from_file[3] = "--tokens-file";
  EXPECT_EQ(RunCommand(from_file).out, first.out);
}

TEST_F(Generate, TopKWithoutATemperatureIsRefused) {
  const Ended ended = RunCommand(GenerateArguments() + Arguments{"--top-k", "20"});
  EXPECT_EQ(ended.exit_code, 2) << ended.out;
  EXPECT_THAT(ended.err, HasSubstr("give --temperature above 0 too"));
}

TEST_F(Generate, APromptThatIsLongerThanTheWindowIsTold) {
  const auto told = [&](int tokens, const char* sequence) {
    std::string prompt = "1";
    for (int i = 1; i < tokens; ++i) prompt += "," + std::to_string(i % kTinyVocabulary);
    const Ended ended = RunCommand({"generate", "--model", model(), "--tokens", prompt, "--seq",
                                    sequence, "--max-tokens", "1", "--json"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_FALSE(ended.json().is_discarded()) << ended.out;
    return ended.err;
  };
  EXPECT_EQ(told(40, "16"),
            "note: the prompt has 40 tokens, and only its last 16 are used; --seq 40 uses all of "
            "them\n");
  EXPECT_EQ(told(200, "16"),
            "note: the prompt has 200 tokens, and only its last 16 are used; --seq 128 uses as "
            "many as the model can take\n");
  EXPECT_EQ(told(200, "128"),
            "note: the prompt has 200 tokens, and only its last 128 are used, as many as the model "
            "can take\n");
  EXPECT_EQ(told(16, "16"), "");
}

TEST_F(Generate, StopsAtTheEndOfText) {
  Json json = ParseJson(ReadFile(config()));
  json["eos_token_id"] = nlohmann::json::array();
  for (int token = 0; token < kTinyVocabulary; ++token) json["eos_token_id"].push_back(token);
  WriteFile(config(), json.dump());
  const Ended ended = RunCommand(GenerateArguments());
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["tokens"].size(), 0U);
  EXPECT_EQ(ended.json()["finish_reason"], "eos");
}

TEST_F(Generate, ThroughAStoreGivesTheSame) {
  const Ended tiers = RunCommand(GenerateArguments() + Tiers());
  ASSERT_EQ(tiers.exit_code, 0) << tiers.err;
  EXPECT_EQ(tiers.out, RunCommand(GenerateArguments()).out);
  EXPECT_FALSE(std::filesystem::exists(training_ / "scratch"));
}

TEST_F(Generate, InBf16ThroughAStoreGivesTheSame) {
  const Arguments bf16 = {"--precision", "bf16", "--fp32", "*embed*"};
  const Ended tiers = RunCommand(GenerateArguments() + bf16 + Tiers());
  ASSERT_EQ(tiers.exit_code, 0) << tiers.err;
  EXPECT_EQ(tiers.out, RunCommand(GenerateArguments() + bf16).out);
}

// Dropout is for training alone.
TEST_F(Generate, ADropoutRateChangesNothingAndHindersNoEvaluation) {
  const Ended loss = RunCommand(EvalArguments());
  const Ended tokens = RunCommand(GenerateArguments());
  ASSERT_EQ(loss.exit_code, 0) << loss.err;
  ASSERT_EQ(tokens.exit_code, 0) << tokens.err;
  Json json = ParseJson(ReadFile(config()));
  json["attention_dropout"] = 0.1;
  WriteFile(config(), json.dump());
  const Ended loss_with_rate = RunCommand(EvalArguments());
  EXPECT_EQ(loss_with_rate.exit_code, 0) << loss_with_rate.err;
  EXPECT_EQ(loss_with_rate.json()["loss"], loss.json()["loss"]);
  const Ended tokens_with_rate = RunCommand(GenerateArguments());
  EXPECT_EQ(tokens_with_rate.exit_code, 0) << tokens_with_rate.err;
  EXPECT_EQ(tokens_with_rate.out, tokens.out);
}

TEST_F(Generate, BadPromptsAreRefused) {
  for (const char* tokens : {"64", "-1", "a", "1,2,x", ","}) {
    const Ended ended = RunCommand(GenerateArguments(tokens));
    EXPECT_EQ(ended.exit_code, 2) << tokens << ": " << ended.err;
  }
  EXPECT_EQ(RunCommand(GenerateArguments() + Arguments{"--tokens-file", "x"}).exit_code, 2);
}

TEST_F(BadModel, ATruncatedFileIsRefused) {
  std::filesystem::resize_file(weights(), std::filesystem::file_size(weights()) - 1);
  const Ended ended = RunCommand(EvalArguments());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("model.safetensors"));
  EXPECT_THAT(ended.out, IsEmpty());
}

TEST_F(BadModel, AWeightThatIsNotANumberIsNamedBeforeAStoreIsMade) {
  std::string file = ReadFile(weights());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(file.data() + file.size() - sizeof(nan), &nan, sizeof(nan));
  WriteFile(weights(), file);
  const Ended loaded = RunCommand(EvalArguments());
  EXPECT_EQ(loaded.exit_code, 1);
  EXPECT_THAT(loaded.err, HasSubstr("model.norm.weight: element 31 (nan) is not finite"));
  const Ended ended = RunCommand({"train", "--model", model(), "--data", training_.data(), "--seq",
                                  "16", "--steps", "1", "--store", training_.store()});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("not finite"));
  EXPECT_FALSE(std::filesystem::exists(training_.store()));
}

TEST_F(BadModel, WhatDoesNotFitTheConfigurationIsRefused) {
  const Json config_json = ParseJson(ReadFile(config()));
  const std::vector<std::pair<std::string, nlohmann::json>> changes = {
      {"intermediate_size", 40},
      {"num_hidden_layers", 3},
      {"num_hidden_layers", 1},
      {"tie_word_embeddings", false},
      {"num_key_value_heads", 4},
      {"model_type", "mamba"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}};
  for (const auto& [key, value] : changes) {
    nlohmann::json other = config_json;
    other[key] = value;
    if (key == "model_type") other["architectures"] = {"MambaForCausalLM"};
    WriteFile(config(), other.dump());
    const Ended ended = RunCommand(EvalArguments());
    EXPECT_EQ(ended.exit_code, 1) << key << ": " << ended.err;
    EXPECT_THAT(ended.out, IsEmpty());
  }
}

TEST_F(BadModel, MissingFilesAreNamed) {
  const Ended nowhere =
      RunCommand({"eval", "--model", training_ / "nowhere", "--data", training_.data()});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("nowhere"));
  std::filesystem::remove(weights());
  const Ended ended = RunCommand(EvalArguments());
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr(model()));
}

}  // namespace
}  // namespace spillway::test
