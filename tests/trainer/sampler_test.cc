// SPDX-License-Identifier: Apache-2.0
//
// Tests drawing tokens from logits.

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tools/trainer/generator.h"

namespace spillway::trainer {
namespace {

std::vector<int32_t> Draws(const SamplingOptions& options, const std::vector<float>& logits,
                           int count) {
  Sampler sampler(options);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(*sampler.Draw(logits));
  return tokens;
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(*Sampler({}).Draw(std::vector<float>{1, 3, 3, 2}), 1);
}

TEST(Sampler, TopOneIsGreedyAtAnyTemperature) {
  const std::vector<float> logits = {1, 3, 3, 2};
  for (const int32_t token : Draws({.temperature = 100, .top_k = 1}, logits, 50))
    EXPECT_EQ(token, 1);
}

TEST(Sampler, TopKNeverDrawsOutsideTheK) {
  const std::vector<float> logits = {0.1F, 0.4F, 0.3F, 0.2F};
  for (const int32_t token : Draws({.temperature = 10, .top_k = 2}, logits, 500)) {
    EXPECT_TRUE(token == 1 || token == 2) << token;
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F)};
  constexpr int kDraws = 40000;
  std::array<int, 3> counts{};
  for (const int32_t token : Draws({.temperature = 1, .seed = 3}, logits, kDraws)) ++counts[token];
  EXPECT_NEAR(counts[0] / double{kDraws}, 0.125, 0.01);
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.25, 0.01);
  EXPECT_NEAR(counts[2] / double{kDraws}, 0.625, 0.01);
}

TEST(Sampler, TheSeedDecides) {
  const std::vector<float> logits(1000, 0.0F);
  const SamplingOptions options = {.temperature = 1, .seed = 11};
  EXPECT_EQ(Draws(options, logits, 20), Draws(options, logits, 20));
  EXPECT_NE(Draws(options, logits, 20), Draws({.temperature = 1, .seed = 12}, logits, 20));
}

TEST(Sampler, HugeLogitsDoNotOverflow) {
  const std::vector<float> logits = {-3e38F, 3e38F};
  for (const int32_t token : Draws({.temperature = 0.001}, logits, 20)) EXPECT_EQ(token, 1);
}

TEST(Sampler, LogitsThatAreNotFiniteAreAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Sampler({}).Draw(std::vector<float>{0, bad}).status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Sampler({}).Draw(std::vector<float>{}).status()));
}

}  // namespace
}  // namespace spillway::trainer
