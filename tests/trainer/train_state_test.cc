// SPDX-License-Identifier: Apache-2.0
//
// Tests the training state of a commit: it reads back exactly, any other text is refused, and the
// error of a resume with other values names the flag.

#include "tools/trainer/train_state.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace spillway::trainer {
namespace {

using ::testing::HasSubstr;

TrainState Example() {
  TrainState state;
  state.step = 1234567890123;
  state.applied_updates = 1234567890000;
  state.data_position = 0xFFFFFFFFFFFFFFFF;
  state.total_steps = 400;
  state.tiles = {.values = 1 << 23, .state = 1 << 22};
  state.loss_scale = {.scale = 0x1.fffffep-20F, .good_steps = 1999};
  state.last_loss = 0.1 + 0.2;
  state.fixed = {{"--seq", "256"}, {"--lr", "0.0001"}, {"--betas", "0.9,0.95"}};
  state.config_json = "{\n  \"vocab_size\": 49152,\n  \"q\": \"\\u00e9\"\n}";
  return state;
}

TEST(TrainState, ReadsBackExactly) {
  const auto parsed = ParseTrainState(SerializeTrainState(Example()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Example());
}

TEST(TrainState, OfAnOlderStoreHasNoTiles) {
  TrainState state = Example();
  state.tiles = {};
  const std::string text = SerializeTrainState(state);
  EXPECT_EQ(text.find("tiles"), std::string::npos);
  const auto parsed = ParseTrainState(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, state);
}

TEST(TrainState, TilesThatCannotBeAreDataLoss) {
  for (const TileSizes& tiles :
       {TileSizes{1, 0}, {0, 1}, {-1, -1}, {1, 2}, {kMostTileElements + 1, 1}}) {
    TrainState state = Example();
    state.tiles = tiles;
    const auto parsed = ParseTrainState(SerializeTrainState(state));
    EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << tiles.values << " " << tiles.state;
  }
}

TEST(TrainState, ALossThatIsNotFiniteComesBackAsNaN) {
  TrainState state = Example();
  state.last_loss = 1.0 / 0.0;
  const auto parsed = ParseTrainState(SerializeTrainState(state));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_NE(parsed->last_loss, parsed->last_loss);
}

TEST(TrainState, BytesThatAreNotUtf8DoNotStopACommit) {
  TrainState state = Example();
  state.config_json = "\xff\xfe";
  EXPECT_TRUE(ParseTrainState(SerializeTrainState(state)).ok());
}

TEST(TrainState, AnythingElseIsDataLoss) {
  for (const char* text : {"", "hello", "[]", "{}", R"({"v":1})", R"({"v":2,"step":1})"}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseTrainState(text).status())) << text;
  }
  const std::string good = SerializeTrainState(Example());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(ParseTrainState(good.substr(0, length)).status())) << length;
  }
}

TEST(TrainState, JsonThatIsNestedTooDeepIsDataLoss) {
  constexpr size_t kDepth = 1'000'000;
  const std::string text = R"({"v":)" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}";
  EXPECT_TRUE(absl::IsDataLoss(ParseTrainState(text).status()));
}

TEST(TrainState, ANewerVersionIsNamed) {
  std::string text = SerializeTrainState(Example());
  text.replace(text.find("\"v\":1"), 5, "\"v\":7");
  EXPECT_THAT(std::string(ParseTrainState(text).status().message()), HasSubstr("version 7"));
}

TEST(CheckSameNumbers, NamesEachFlagThatDiffers) {
  const std::vector<FixedFlag> stored = {{"--seq", "256"}, {"--lr", "0.0001"}, {"--clip", "1"}};
  const std::vector<FixedFlag> given = {{"--lr", "0.0002"}, {"--clip", "1"}, {"--seed", "3"}};
  const std::string message(CheckSameNumbers(stored, given).message());
  for (const char* part :
       {"--seq was 256 in the store's run and is (nothing) now",
        "--lr was 0.0001 in the store's run and is 0.0002 now",
        "--seed was (nothing) in the store's run and is 3 now", "the same values"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(message.find("--clip"), std::string::npos) << message;
}

TEST(CheckSameNumbers, NamesTheFlagAndBothValues) {
  const std::vector<FixedFlag> stored = {{"--seq", "256"}, {"--lr", "0.0001"}};
  EXPECT_TRUE(CheckSameNumbers(stored, stored).ok());
  const absl::Status status = CheckSameNumbers(stored, {{"--seq", "256"}, {"--lr", "0.0002"}});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--lr was 0.0001"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("0.0002 now"));
}

TEST(CheckSameNumbers, AFlagOnOneSideOnlyDiffers) {
  EXPECT_FALSE(CheckSameNumbers({{"--seed", "1"}}, {}).ok());
  EXPECT_FALSE(CheckSameNumbers({}, {{"--seed", "1"}}).ok());
}

TEST(CheckSameNumbers, TheRuleAndItsFormatComeFirst) {
  const std::vector<FixedFlag> stored = {{"--batch", "1"}, {"--betas", "0.9,0.95"}};
  const auto message = [&](const std::vector<FixedFlag>& given) {
    return std::string(CheckSameNumbers(stored, given).message());
  };
  EXPECT_THAT(message({{"--batch", "2"}, {"--momentum", "0"}, {"--optimizer", "sgd"}}),
              HasSubstr("--optimizer was adamw"));
  EXPECT_THAT(message({{"--batch", "2"}, {"--betas", "0.9,0.95"}, {"--state-format", "bf16"}}),
              HasSubstr("--state-format was fp32"));
  EXPECT_THAT(message({{"--batch", "2"}, {"--betas", "0.9,0.95"}, {"--freeze", "*"}}),
              HasSubstr("--batch was 1"));
}

TEST(CheckSameNumbers, StoresFromBeforeThereWereRulesAreAdamWInFp32) {
  const std::vector<FixedFlag> stored = {{"--batch", "1"}};
  EXPECT_TRUE(CheckSameNumbers(
                  stored, {{"--batch", "1"}, {"--optimizer", "adamw"}, {"--state-format", "fp32"}})
                  .ok());
}

TEST(CheckSameNumbers, AnotherModelIsAStoreOfSomethingElse) {
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckSameNumbers({{"--model", "a"}}, {{"--model", "b"}})));
}

}  // namespace
}  // namespace spillway::trainer
