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

TEST(ModelFolder, AnIndexMayNotLeadOutsideItsFolder) {
  const TempFolder folder;
  WriteShards(folder);
  for (const char* name : {"../s1.safetensors", "/etc/passwd", "..", ".", "", "s\\u0000"}) {
    WriteIndex(folder, std::string(R"({"a":")") + name + "\"}");
    EXPECT_THAT(ModelFolder::Open(folder.path()), IsInvalid("file beside the index is expected"))
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
