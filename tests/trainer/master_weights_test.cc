// SPDX-License-Identifier: Apache-2.0
//
// Tests the hash of the weights and their export as a Hugging Face folder.

#include "tools/trainer/master_weights.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spillway/optimizer.h"
#include "tests/heap_engine.h"
#include "tests/read_only_mount.h"
#include "tests/temp_folder.h"
#include "tools/hf/model_folder.h"
#include "tools/trainer/export.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

using test::ReadFile;
using test::TempFolder;
using test::WriteFile;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kConfig[] =
    R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 53})";

// Adds a parameter [rows × 4] in tiles of `tile_rows`, filled with `first`, `first` + 1, …
Parameter AddParameter(HeapEngine* engine, const std::string& name, int64_t rows, int64_t tile_rows,
                       float first) {
  Parameter parameter{.name = name, .shape = {rows, 4}};
  const TensorSpec spec = {.name = name, .shape = parameter.shape, .tile_rows = tile_rows};
  parameter.tensors.master = *engine->Register(spec);
  for (float& value : engine->Values<float>(parameter.tensors.master)) value = first++;
  return parameter;
}

TEST(HashWeights, FollowsNamesShapesAndValuesOnly) {
  HeapEngine engine;
  const Parameter a = AddParameter(&engine, "a", 6, 6, 0);
  const Parameter b = AddParameter(&engine, "b", 3, 3, 100);
  const std::string hash = *HashWeights(&engine, {a, b});
  EXPECT_EQ(hash.size(), 32U);
  EXPECT_EQ(*HashWeights(&engine, {b, a}), hash) << "the order is that of the names";

  HeapEngine tiled;
  const Parameter tiled_a = AddParameter(&tiled, "a", 6, 4, 0);
  const Parameter tiled_b = AddParameter(&tiled, "b", 3, 1, 100);
  EXPECT_EQ(*HashWeights(&tiled, {tiled_a, tiled_b}), hash) << "tiles are no part of it";
}

TEST(HashWeights, AnyChangeOfNameShapeOrValueShows) {
  HeapEngine engine;
  Parameter a = AddParameter(&engine, "a", 6, 6, 0);
  const std::string hash = *HashWeights(&engine, {a});
  a.name = "c";
  EXPECT_NE(*HashWeights(&engine, {a}), hash);
  a.name = "a";
  a.shape = {4, 6};
  EXPECT_NE(*HashWeights(&engine, {a}), hash);
  a.shape = {6, 4};
  EXPECT_EQ(*HashWeights(&engine, {a}), hash);
  engine.Values<float>(a.tensors.master)[23] = -23;
  EXPECT_NE(*HashWeights(&engine, {a}), hash);
}

TEST(HashWeights, OfAFrozenWeightIn16BitsIsThatOfItsValues) {
  HeapEngine engine;
  const Parameter full = AddParameter(&engine, "a", 6, 6, 1);
  const auto values = engine.Values<float>(full.tensors.master);
  for (const DType type : {DType::kF16, DType::kBF16}) {
    Parameter frozen{.name = "a", .shape = {6, 4}};
    frozen.tensors.weight = frozen.tensors.master =
        *engine.Register({.name = "narrow", .dtype = type, .shape = frozen.shape, .tile_rows = 4});
    FromFloats(type, values.data(), 24, engine.Values<std::byte>(frozen.tensors.weight).data());
    EXPECT_EQ(*HashWeights(&engine, {frozen}), *HashWeights(&engine, {full}));
  }
}

TEST(HashWeights, OfASplitMasterWeightIsThatOfItsValues) {
  HeapEngine engine;
  const Parameter full = AddParameter(&engine, "a", 6, 6, 1);
  const auto values = engine.Values<float>(full.tensors.master);
  for (float& value : values) value += 1.0F / 1024;  // from 2 on, fp16 cannot hold the sum
  const Reader reader = [&values](uint64_t offset_bytes, std::span<std::byte> out) {
    std::memcpy(out.data(), values.data() + offset_bytes / sizeof(float), out.size());
    return absl::OkStatus();
  };
  // Rows of a tile of the weight, and of a tile of its rest, which lies within it.
  for (const auto& [rows, rest_rows] : {std::pair(4, 4), {4, 2}, {6, 4}, {6, 1}}) {
    const TensorSpec weight = {.name = absl::StrCat("split ", rows, " ", rest_rows),
                               .dtype = DType::kF16,
                               .shape = full.shape,
                               .tile_rows = rows};
    SCOPED_TRACE(weight.name);
    TensorSpec rest = StateSpecs({}, StateFormat::kCompact, weight)->front();
    rest.tile_rows = rest_rows;
    Parameter split{.name = "a", .shape = {6, 4}};
    split.tensors.weight = split.tensors.master =
        *engine.Register(weight, FirstValues(StateFormat::kCompact, weight, weight, reader));
    EXPECT_NE(*HashWeights(&engine, {split}), *HashWeights(&engine, {full}));
    split.tensors.rest_of_master =
        *engine.Register(rest, FirstValues(StateFormat::kCompact, weight, rest, reader));
    EXPECT_EQ(*HashWeights(&engine, {split}), *HashWeights(&engine, {full}));
  }
}

TEST(RestTilesPerTile, AreWholeOrNone) {
  const auto per_tile = [](int64_t rows, int64_t tile_rows, int64_t rest_rows) {
    const TensorSpec weight = {
        .name = "w", .dtype = DType::kF16, .shape = {rows, 4}, .tile_rows = tile_rows};
    TensorSpec rest = StateSpecs({}, StateFormat::kCompact, weight)->front();
    rest.tile_rows = rest_rows;
    return RestTilesPerTile(weight, rest);
  };
  EXPECT_EQ(per_tile(12, 4, 4), 1);
  EXPECT_EQ(per_tile(12, 4, 2), 2);
  EXPECT_EQ(per_tile(12, 0, 5), 3);
  EXPECT_EQ(per_tile(12, 12, 0), 1);
  EXPECT_EQ(per_tile(12, 4, 3), 0);
  EXPECT_EQ(per_tile(12, 4, 8), 0);
  EXPECT_EQ(per_tile(12, 4, 0), 0);
}

class Export : public ::testing::Test {
 protected:
  Export()
      : parameters_{AddParameter(&engine_, "w", 6, 4, 0.5F), AddParameter(&engine_, "v", 3, 3, 7)} {
    WriteFile(model_ / "tokenizer.json", "{\"tokenizer\": 1}");
    WriteFile(model_ / "model.safetensors", "never copied");
  }
  absl::Status ExportTo(const std::string& folder) {
    return ExportWeights({{"w", {6, 4}}, {"v", {3, 4}}}, MasterWeights(&engine_, parameters_),
                         config_, model_.path(), folder);
  }

  std::string config_ = kConfig;
  TempFolder model_;
  TempFolder out_;
  HeapEngine engine_;
  std::vector<Parameter> parameters_;
};

TEST_F(Export, WritesWeightsConfigAndTokenizer) {
  const std::string folder = out_ / "deep/saved/";
  ASSERT_TRUE(ExportTo(folder).ok());
  const auto read = hf::ModelFolder::Open(folder);
  ASSERT_TRUE(read.ok()) << read.status();
  std::vector<float> values(24);
  ASSERT_TRUE((*read)->Read("w", 0, values).ok());
  for (int i = 0; i < 24; ++i) EXPECT_EQ(values[i], 0.5F + static_cast<float>(i));
  EXPECT_EQ((*read)->Find("v")->dtype_name, "F32");
  EXPECT_THAT(ReadFile(folder + "config.json"), HasSubstr("\"torch_dtype\": \"float32\""));
  EXPECT_EQ(ReadFile(folder + "tokenizer.json"), "{\"tokenizer\": 1}");
  const auto entries = std::filesystem::directory_iterator(out_ / "deep");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "no partial folder is left";
}

TEST_F(Export, CopiesTheChatTemplatesThatHaveAFolderOfTheirOwn) {
  std::filesystem::create_directory(model_ / "additional_chat_templates");
  WriteFile(model_ / "additional_chat_templates/tools.jinja", "{{ tools }}");
  WriteFile(model_ / "additional_chat_templates/notes.txt", "no template");
  WriteFile(model_ / "chat_template.json", "{}");
  const std::string folder = out_ / "saved";
  ASSERT_TRUE(ExportTo(folder).ok());
  EXPECT_EQ(ReadFile(folder + "/chat_template.json"), "{}");
  EXPECT_EQ(ReadFile(folder + "/additional_chat_templates/tools.jinja"), "{{ tools }}");
  EXPECT_FALSE(std::filesystem::exists(folder + "/additional_chat_templates/notes.txt"));
}

TEST_F(Export, TheConfigNamesTheTypeUnderEachKeyThatItHas) {
  const std::string old_key = R"("torch_dtype": )";
  const std::string new_key = R"("dtype": )";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", old_key + "\"float32\""},
      {old_key + "\"bfloat16\"", old_key + "\"float32\""},
      {new_key + "\"bfloat16\"", new_key + "\"float32\""},
      {new_key + "\"bfloat16\", " + old_key + "\"float16\"",
       new_key + "\"float32\",\n  " + old_key + "\"float32\""}};
  for (const auto& [given, expected] : cases) {
    config_ = "{" + given + "}";
    const std::string folder = out_ / std::to_string(given.size());
    ASSERT_TRUE(ExportTo(folder).ok());
    EXPECT_EQ(ReadFile(folder + "/config.json"), "{\n  " + expected + "\n}\n");
  }
}

TEST_F(Export, OverwritesNothing) {
  WriteFile(out_ / "file", "mine");
  std::filesystem::create_directories(out_ / "full");
  WriteFile(out_ / "full/mine", "mine");
  for (const char* name : {"file", "full"}) {
    EXPECT_TRUE(absl::IsAlreadyExists(CheckExportFolder(out_ / name, 1)));
    EXPECT_TRUE(absl::IsAlreadyExists(ExportTo(out_ / name)));
  }
  EXPECT_EQ(ReadFile(out_ / "full/mine"), "mine");
}

TEST_F(Export, TakesAnEmptyFolder) {
  std::filesystem::create_directories(out_ / "empty");
  EXPECT_TRUE(ExportTo(out_ / "empty").ok());
  EXPECT_TRUE(std::filesystem::exists(out_ / "empty/model.safetensors"));
}

TEST_F(Export, RefusesAFolderThatARenameCannotReplace) {
  std::filesystem::create_directories(out_ / "empty");
  std::vector<std::string> names = {"empty/.", "empty/..", "missing/."};
  // Tells a mount in the same file system, too.
  const test::ReadOnlyMount mount(out_ / "empty", out_ / "mount");
  if (mount.is_mounted()) names.emplace_back("mount/");
  for (const std::string& name : names) {
    const absl::Status status = CheckExportFolder(out_ / name, 1);
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("name a folder inside it"));
    EXPECT_TRUE(absl::IsAlreadyExists(ExportTo(out_ / name))) << name;
  }
  if (!mount.is_mounted()) GTEST_SKIP() << "the mount point is left out: " << mount.why();
}

// An export removes the partial folders of killed exports to the same target. It leaves the folders
// of running exports, of exports to other targets and of other owners.
TEST_F(Export, RemovesOnlyWhatAKilledExportLeft) {
  const std::string marker =
      "spillway makes an export here; once its process is gone, so may this folder.\n";
  const auto add = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(out_ / name);
    WriteFile(out_ / name + "/spillway-partial", text);
  };
  add("saved.partial-1", marker);
  add("saved.partial-2", marker);
  add("saved.partial-3", "my own file");
  add("saved.partial", marker);
  // In a container, a process may have the process id of one that was killed.
  const std::string same = "saved.partial-" + std::to_string(getpid());
  add(same, "my own file");
  add("other.partial-1", marker);
  const int living = open((out_ / "saved.partial-2/spillway-partial").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(living, LOCK_EX | LOCK_NB), 0);
  EXPECT_TRUE(ExportTo(out_ / "saved").ok());
  close(living);
  EXPECT_FALSE(std::filesystem::exists(out_ / "saved.partial-1"));
  for (const char* name :
       {"saved.partial-2", "saved.partial-3", "saved.partial", "other.partial-1", same.c_str()})
    EXPECT_TRUE(std::filesystem::exists(out_ / name)) << name;
  EXPECT_FALSE(std::filesystem::exists(out_ / "saved/spillway-partial"));
}

TEST_F(Export, AFailureLeavesNothing) {
  std::filesystem::create_directories(model_ / "vocab.json");  // a folder cannot be copied
  const absl::Status failed = ExportTo(out_ / "saved");
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(std::string(failed.message()), Not(HasSubstr("partial")));
  EXPECT_TRUE(std::filesystem::is_empty(out_.path()));
}

}  // namespace
}  // namespace spillway::trainer
