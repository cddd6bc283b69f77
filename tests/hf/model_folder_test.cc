// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/model_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

// Returns a file that holds one F32 tensor of one element.
std::string Scalar(const std::string& name, float value) {
  return SafetensorsBytes("{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                          BytesOf(std::vector<float>{value}));
}

void WriteIndex(const TempFolder& folder, const std::string& weight_map) {
  WriteFile(folder / kWeightsIndexFile,
            R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}");
}

// Writes two shards, with "a" in s1 and "b" in s2, and their index.
void WriteShards(const TempFolder& folder) {
  WriteFile(folder / "s1.safetensors", Scalar("a", 1.0f));
  WriteFile(folder / "s2.safetensors", Scalar("b", 2.0f));
  WriteIndex(folder, R"({"a":"s1.safetensors","b":"s2.safetensors"})");
}

TEST(ModelFolder, ReadsOneFile) {
  const TempFolder folder;
  WriteFile(folder / kWeightsFile, ValidSafetensors());
  const auto model = ModelFolder::Open(folder.path());
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ((*model)->names(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_NE((*model)->Find("a"), nullptr);
  EXPECT_EQ((*model)->Find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*model)->Find("x"), nullptr);
  std::vector<float> out(2);
  ASSERT_THAT((*model)->Read("a", 2, out), IsOk());
  EXPECT_EQ(out, (std::vector<float>{2.0f, 3.25f}));
  EXPECT_THAT((*model)->Read("x", 0, out), IsError(absl::StatusCode::kNotFound, "no tensor \"x\""));
}

TEST(ModelFolder, ShardsAreOneSetOfNames) {
  const TempFolder folder;
  WriteShards(folder);
  const auto model = ModelFolder::Open(folder.path());
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ((*model)->names(), (std::vector<std::string>{"a", "b"}));
  std::vector<float> out(1);
  ASSERT_THAT((*model)->Read("b", 0, out), IsOk());
  EXPECT_EQ(out[0], 2.0f);
}

TEST(ModelFolder, OneFileIsPreferredToShards) {
  const TempFolder folder;
  WriteShards(folder);
  WriteFile(folder / kWeightsFile, Scalar("single", 1.0f));
  const auto model = ModelFolder::Open(folder.path());
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ((*model)->names(), (std::vector<std::string>{"single"}));
}

TEST(ModelFolder, ABadSingleFileIsNotPassedOverForShards) {
  const TempFolder folder;
  WriteShards(folder);
  WriteFile(folder / kWeightsFile, "short");
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("model.safetensors: has 5 bytes"));
}

TEST(ModelFolder, NoWeightsAtAllSaysWhatWasLookedFor) {
  const TempFolder folder;
  EXPECT_THAT(ModelFolder::Open(folder.path()),
              IsError(absl::StatusCode::kNotFound,
                      "neither model.safetensors nor model.safetensors.index.json"));
}

TEST(ModelFolder, AMissingShardIsNamedWithItsIndex) {
  const TempFolder folder;
  WriteShards(folder);
  std::filesystem::remove(folder / "s2.safetensors");
  EXPECT_THAT(ModelFolder::Open(folder.path()),
              IsError(absl::StatusCode::kNotFound, "s2.safetensors"));
  EXPECT_THAT(ModelFolder::Open(folder.path()),
              IsError(absl::StatusCode::kNotFound, "names it as a shard"));
}

TEST(ModelFolder, IndexAndShardsMustAgree) {
  const TempFolder folder;
  WriteShards(folder);
  WriteIndex(folder, R"({"a":"s2.safetensors","b":"s1.safetensors"})");
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("holds no tensor \"b\""));
  WriteIndex(folder, R"({"a":"s1.safetensors"})");
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsOk());  // the index does not name s2
  WriteFile(folder / "s1.safetensors", ValidSafetensors());
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("does not place there"));
  EXPECT_THAT(ModelFolder::Open(folder.path()),
              IsInvalid("they are of different models; copy both again, or correct the index's"));
}

TEST(ModelFolder, ATensorInTwoShardsIsAnError) {
  const TempFolder folder;
  WriteShards(folder);
  WriteFile(folder / "s2.safetensors", Scalar("a", 2.0f));
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("and so does"));
  WriteShards(folder);
  WriteIndex(folder, R"({"a":"s1.safetensors","b":"s2.safetensors","a":"s2.safetensors"})");
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("holds the name \"a\" twice"));
}

TEST(ModelFolder, RotaryFrequenciesAreSkippedAnywhere) {
  const TempFolder folder;
  const std::string frequencies = "model.rotary_emb.inv_freq";
  WriteFile(folder / kWeightsFile, Scalar(frequencies, 1.0f));
  auto model = ModelFolder::Open(folder.path());
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ((*model)->names(), std::vector<std::string>());
  std::filesystem::remove(folder / kWeightsFile);
  // The index and the shards may disagree about them, and each shard may have its own.
  for (const char* placed : {"s1.safetensors", "s3.safetensors", "../s1", ""}) {
    WriteShards(folder);
    WriteFile(folder / "s3.safetensors", Scalar(frequencies, 1.0f));
    WriteIndex(folder, R"({"a":"s1.safetensors","b":"s2.safetensors",")" + frequencies + "\":\"" +
                           placed + "\"}");
    model = ModelFolder::Open(folder.path());
    ASSERT_THAT(model, IsOk()) << placed;
    EXPECT_EQ((*model)->names(), (std::vector<std::string>{"a", "b"})) << placed;
  }
  const std::string two = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},")" +
                          frequencies + R"(":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})";
  WriteFile(folder / "s1.safetensors", SafetensorsBytes(two, BytesOf(std::vector<float>{1, 2})));
  WriteIndex(folder, R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  EXPECT_THAT(ModelFolder::Open(folder.path()), IsOk());
  for (const char* other : {"model.rotary_emb.inv_freqs", "inv_freq"}) {
    WriteFile(folder / kWeightsFile, Scalar(other, 1.0f));
    model = ModelFolder::Open(folder.path());
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ((*model)->names(), std::vector<std::string>{other});
  }
}

TEST(ModelFolder, MasksAreSkippedAndBiasesAreNot) {
  const TempFolder folder;
  for (const char* mask : {"h.0.attn.bias", "transformer.h.11.attn.bias", "h.3.attn.masked_bias"}) {
    WriteFile(folder / kWeightsFile, Scalar(mask, 1.0f));
    const auto model = ModelFolder::Open(folder.path());
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ((*model)->names(), std::vector<std::string>()) << mask;
    EXPECT_EQ((*model)->Find(mask), nullptr);
  }
  for (const char* other : {"h.0.attn.c_attn.bias", "h.0.attn.c_proj.bias", "attn.bias",
                            "h.0.attn.bias.weight", "h.0.cross_attn.bias"}) {
    WriteFile(folder / kWeightsFile, Scalar(other, 1.0f));
    const auto model = ModelFolder::Open(folder.path());
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ((*model)->names(), std::vector<std::string>{other});
  }
}

TEST(ModelFolder, AnIndexMayNotLeadOutsideItsFolder) {
  const TempFolder folder;
  WriteShards(folder);
  for (const char* name :
       {"../s1.safetensors", "/etc/passwd", "..", ".", "", "s1", "s\\u0000.safetensors"}) {
    WriteIndex(folder, std::string(R"({"a":")") + name + "\"}");
    EXPECT_THAT(ModelFolder::Open(folder.path()),
                IsInvalid(".safetensors file beside the index is expected"))
        << name;
  }
}

TEST(ModelFolder, AMalformedIndexIsAnError) {
  const TempFolder folder;
  for (const char* index : {"", "[]", "{}", "null", R"({"weight_map":[]})", R"({"weight_map":{}})",
                            R"({"weight_map":{"a":7}})", R"({"weight_map":{"a":"s1")"}) {
    WriteFile(folder / kWeightsIndexFile, index);
    EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("index.json: ")) << index;
  }
}

}  // namespace
}  // namespace spillway::hf
