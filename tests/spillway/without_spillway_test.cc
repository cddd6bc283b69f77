// SPDX-License-Identifier: Apache-2.0
//
// Bytes without Spillway, against values computed by hand from a small model's shapes.

#include "tools/spillway/plan/without_spillway.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"
#include "tools/hf/config.h"

namespace spillway::command {
namespace {

trainer::Description Described(const std::string& json) {
  const absl::StatusOr<hf::ModelConfig> config = hf::ParseModelConfig(json, "a test");
  EXPECT_TRUE(config.ok()) << config.status();
  return trainer::Describe(*config);
}

// 2 blocks of width 64, 4 heads, 100 words, 32 positions.
trainer::Description SmallGpt() {
  return Described(
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
          "activation_function": "gelu_new", "vocab_size": 100, "n_embd": 64, "n_layer": 2,
          "n_head": 4, "n_positions": 32, "layer_norm_epsilon": 1e-5,
          "tie_word_embeddings": true})");
}

// 3 blocks of width 64, 8 heads of 8 that share 2 keys and values, an MLP of 160, an own head.
trainer::Description SmallLlama() {
  return Described(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
          "vocab_size": 100, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
          "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 32,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})");
}

// The weights of SmallGpt: 64·192 + 192 + 64·64 + 64, 64·256 + 256 + 256·64 + 64 and two norms of
// 128 in a block; an embedding, positions and the last norm.
constexpr double kGptBlock = 12288 + 192 + 4096 + 64 + 16384 + 256 + 16384 + 64 + 2 * 128;
constexpr double kGptEmbedding = 100 * 64 + 32 * 64;
constexpr double kGpt = 2 * kGptBlock + kGptEmbedding + 128;

TEST(AutogradBytes, AreKorthikantisOfAGptWithDropoutAndWholeScores) {
  const AutogradBytes bytes = CountAutogradBytes(
      SmallGpt(), {.sequence = 16, .windows = 3, .flash_attention = false, .dropout = true});
  // s·b·h·(34 + 5·a·s/h) of a block, with s = 16, b = 3, h = 64, a = 4.
  constexpr double kBlock = 16.0 * 3 * 64 * 34 + 5.0 * 4 * 16 * 16 * 3;
  EXPECT_EQ(bytes.blocks, 2 * kBlock);
  EXPECT_EQ(bytes.block_inputs, 2.0 * 2 * 16 * 3 * 64);
  EXPECT_EQ(bytes.largest_block, kBlock - 2.0 * 16 * 3 * 64);
  // The last norm's and the head's inputs; the logits and their gradient in fp32.
  EXPECT_EQ(bytes.head, 2.0 * 2 * 48 * 64 + 2.0 * 4 * 48 * 100);
  EXPECT_EQ(bytes.Peak(false), bytes.blocks + bytes.head);
  EXPECT_EQ(bytes.Peak(true), bytes.block_inputs + bytes.largest_block) << "more than the head";
}

TEST(AutogradBytes, FlashAttentionKeepsNoScores) {
  const AutogradBytes bytes = CountAutogradBytes(SmallGpt(), {.sequence = 16});
  // Without dropout's masks 32 bytes a value, and 4 for each head's row.
  EXPECT_EQ(bytes.blocks, 2 * (16.0 * 64 * 32 + 4.0 * 4 * 16));
}

TEST(AutogradBytes, KnowGroupedKeysGatesAndFp32) {
  const AutogradBytes bytes =
      CountAutogradBytes(SmallLlama(), {.sequence = 32, .element_bytes = 4});
  // Of a token: two norms' inputs 128; the attention's input, queries, keys, values and result
  // 64 + 64 + 2·16 + 64; the MLP's input and its four of 160.
  EXPECT_EQ(bytes.blocks, 3 * 32.0 * (4 * (128 + 224 + 64 + 4 * 160) + 4 * 8));
  EXPECT_EQ(bytes.head, 32.0 * (2 * 4 * 64 + 2 * 4 * 100));
}

TEST(Lora, HasAnAdapterForEachLinearThatIsChosen) {
  const trainer::Description gpt = SmallGpt();
  // A fused linear of 64 to 192: as two adapters of 64 to 64, or one.
  EXPECT_EQ(LoraParameters(gpt, {.rank = 1, .linears = LoraLinears::kQueryValue}), 2 * 2 * 128);
  EXPECT_EQ(LoraParameters(gpt, {.rank = 4, .linears = LoraLinears::kAttention}),
            4 * 2 * ((64 + 192) + 128));
  EXPECT_EQ(LoraParameters(gpt, {.rank = 4, .linears = LoraLinears::kAll}),
            4 * 2 * ((64 + 192) + 128 + 2 * (64 + 256)));
  const trainer::Description llama = SmallLlama();
  EXPECT_EQ(LoraParameters(llama, {.rank = 2, .linears = LoraLinears::kQueryValue}),
            2 * 3 * (128 + (64 + 16)));
  EXPECT_EQ(LoraParameters(llama, {.rank = 2, .linears = LoraLinears::kAll}),
            2 * 3 * (2 * 128 + 2 * (64 + 16) + 3 * (64 + 160)));
}

class Without : public ::testing::Test {
 protected:
  const WithoutSpillway& Way(std::string_view key) const {
    for (const WithoutSpillway& way : ways_)
      if (way.key == key) return way;
    ADD_FAILURE() << key;
    return ways_.front();
  }

  const trainer::Description gpt_ = SmallGpt();
  const WithoutOptions options_ = {
      .sequence = 16, .windows = 2, .ranks = 4, .lora = {.rank = 8, .linears = LoraLinears::kAll}};
  const std::vector<WithoutSpillway> ways_ = WaysWithoutSpillway(gpt_, options_);
  const AutogradBytes saved_ = CountAutogradBytes(gpt_, {.sequence = 16, .windows = 2});
};

TEST_F(Without, PlainWaysHaveAllOnTheGpu) {
  const WithoutSpillway& fp32 = Way("fp32");
  EXPECT_EQ(fp32.weights, 4 * kGpt);
  EXPECT_EQ(fp32.gradients, 4 * kGpt);
  EXPECT_EQ(fp32.state, 8 * kGpt);
  EXPECT_EQ(fp32.activations,
            ActivationBytes(gpt_, {.sequence = 16, .windows = 2, .element_bytes = 4}));
  EXPECT_EQ(fp32.gpu(), 16 * kGpt + fp32.activations);
  const WithoutSpillway& amp = Way("amp");
  EXPECT_EQ(amp.gpu(), 16 * kGpt + saved_.Peak(false));
  EXPECT_FALSE(amp.checkpointing);
  EXPECT_EQ(Way("checkpointing").gpu(), 16 * kGpt + saved_.Peak(true));
  // A byte for each moment, and a scale of 4 bytes for 256 of them.
  EXPECT_EQ(Way("adam_8bit").gpu(), (2 + 2 + 4 + 2 + 8.0 / 256) * kGpt + saved_.Peak(true));
  for (const WithoutSpillway& way : ways_) {
    EXPECT_EQ(way.host == 0, way.key != "zero_offload" && way.key != "zero_3_offload") << way.key;
    EXPECT_EQ(way.checkpointing, way.key != "fp32" && way.key != "amp") << way.key;
  }
}

TEST_F(Without, AdaptersAreTrainedInFp32) {
  constexpr double kAdapters = 8 * 2 * ((64 + 192) + 128 + 2 * (64 + 256));
  const double kept = 4.0 * 2 * 32 * 8;  // of four adapters: 8 values of 32 tokens in 16 bits
  const WithoutSpillway& lora = Way("lora");
  EXPECT_EQ(lora.weights, 2 * kGpt + 4 * kAdapters);
  EXPECT_EQ(lora.gradients + lora.state, 12 * kAdapters);
  EXPECT_EQ(lora.activations, saved_.Peak(true) + kept);
  const WithoutSpillway& qlora = Way("qlora");
  constexpr double kLinears = 2 * (12288 + 4096 + 16384 + 16384);
  EXPECT_NEAR(qlora.weights, 2 * (kGpt - kLinears) + 4.127 / 8 * kLinears + 4 * kAdapters, 1);
  EXPECT_EQ(qlora.temporary, 2.0 * 16384);
}

TEST_F(Without, RanksShareWhatTheirStageDivides) {
  const double activations = saved_.Peak(true);
  EXPECT_EQ(Way("zero_1").gpu(), (2 + 2 + 12 / 4.0) * kGpt + activations);
  EXPECT_EQ(Way("zero_2").gpu(), (2 + 14 / 4.0) * kGpt + activations + 2 * kGptBlock);
  // Two blocks are gathered, and the gradients of one are on their way.
  EXPECT_EQ(Way("zero_3").gpu(), 16 / 4.0 * kGpt + activations + (2 * 2 + 2) * kGptBlock);
  const WithoutSpillway& offload = Way("zero_offload");
  EXPECT_EQ(offload.gpu(), 2 * kGpt + activations + 2 * kGptBlock);
  EXPECT_EQ(offload.host, 14 * kGpt);
  const WithoutSpillway& all = Way("zero_3_offload");
  EXPECT_EQ(all.gpu(), activations + (2 * 2 + 2) * kGptBlock);
  EXPECT_EQ(all.host, 16 / 4.0 * kGpt);
}

TEST_F(Without, APartMayBeTheEmbeddingOrTheHead) {
  const std::string wide = absl::StrFormat(
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
          "vocab_size": %d, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
          "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 32,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})",
      5000);
  for (const WithoutSpillway& way : WaysWithoutSpillway(Described(wide), options_)) {
    if (way.key != "zero_3") continue;
    EXPECT_EQ(way.temporary, (2 * 2 + 2) * 5000.0 * 64);
  }
}

TEST_F(Without, HoldsForModelsBeyondSixtyFourBits) {
  const trainer::Description huge = Described(
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
          "activation_function": "gelu_new", "vocab_size": 1000000, "n_embd": 1048576,
          "n_layer": 80, "n_head": 4096, "n_positions": 1048576, "layer_norm_epsilon": 1e-5,
          "tie_word_embeddings": true})");
  const WithoutOptions options = {.sequence = 1 << 20, .windows = 1 << 20};
  for (const WithoutSpillway& way : WaysWithoutSpillway(huge, options)) {
    EXPECT_GT(way.gpu(), 1e14) << way.key;
    EXPECT_LT(way.gpu(), 1e30) << way.key;
  }
}

}  // namespace
}  // namespace spillway::command
