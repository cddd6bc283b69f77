// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/safetensors_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"
#include "tools/hf/model_folder.h"

namespace spillway::hf {
namespace {

std::span<const std::byte> Bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

// Returns the declarations of "a" [2, 3], "b" [] and "c" [5]. TwelveValues returns their values.
std::vector<TensorDeclaration> ThreeTensors() {
  return {{"a", TensorDType::kF32, {2, 3}},
          {"b", TensorDType::kF32, {}},
          {"c", TensorDType::kF32, {5}}};
}

std::vector<float> TwelveValues() {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// Writes the three tensors, `piece_bytes` bytes at a time.
absl::Status WriteThree(const std::string& folder, const SafetensorsWriterOptions& options,
                        size_t piece_bytes = 7) {
  auto writer = SafetensorsWriter::Create(folder, ThreeTensors(), options);
  if (!writer.ok()) return writer.status();
  const std::vector<float> values = TwelveValues();
  for (std::span<const std::byte> left = Bytes(values); !left.empty();) {
    const auto piece = left.first(std::min(piece_bytes, left.size()));
    if (absl::Status status = (*writer)->Append(piece); !status.ok()) return status;
    left = left.subspan(piece.size());
  }
  return (*writer)->Finish();
}

void ExpectThree(const std::string& folder) {
  const auto model = ModelFolder::Open(folder);
  ASSERT_THAT(model, IsOk());
  std::vector<float> found;
  for (const TensorDeclaration& tensor : ThreeTensors()) {
    const TensorEntry* entry = (*model)->Find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->shape, tensor.shape);
    std::vector<float> values(entry->num_elements);
    ASSERT_THAT((*model)->Read(tensor.name, 0, values), IsOk());
    found.insert(found.end(), values.begin(), values.end());
  }
  EXPECT_EQ(found, TwelveValues());
}

TEST(SafetensorsWriter, WhatIsWrittenReadsBack) {
  for (size_t piece_bytes : {1, 7, 24, 1000}) {
    const TempFolder folder;
    ASSERT_THAT(WriteThree(folder.path(), {}, piece_bytes), IsOk());
    EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"model.safetensors"}));
    ExpectThree(folder.path());
  }
}

TEST(SafetensorsWriter, TheHeaderSaysPyTorchAndAlignsTheData) {
  const TempFolder folder;
  ASSERT_THAT(WriteThree(folder.path(), {}), IsOk());
  const std::string file = ReadFile(folder / kWeightsFile);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  EXPECT_EQ(header_bytes % 8, 0u);
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  EXPECT_EQ(header["__metadata__"], nlohmann::json({{"format", "pt"}}));
  EXPECT_EQ(header["c"].dump(), R"({"data_offsets":[28,48],"dtype":"F32","shape":[5]})");
}

TEST(SafetensorsWriter, ShardsHoldAtMostTheirLimit) {
  const TempFolder folder;
  ASSERT_THAT(WriteThree(folder.path(), {.max_shard_bytes = 28}), IsOk());
  EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                              "model-00002-of-00002.safetensors",
                                                              "model.safetensors.index.json"}));
  ExpectThree(folder.path());
  const auto index = nlohmann::json::parse(ReadFile(folder / kWeightsIndexFile));
  EXPECT_EQ(index["metadata"]["total_size"], 48);
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00002.safetensors");
}

TEST(SafetensorsWriter, ATensorAboveTheLimitHasAShardOfItsOwn) {
  const TempFolder folder;
  ASSERT_THAT(WriteThree(folder.path(), {.max_shard_bytes = 1}), IsOk());
  EXPECT_EQ(FilesIn(folder.path()).size(), 4u);
  ExpectThree(folder.path());
}

TEST(SafetensorsWriter, EmptyTensorsAndNoTensorsAreWritten) {
  const TempFolder folder;
  for (const std::vector<TensorDeclaration>& tensors : std::vector<std::vector<TensorDeclaration>>{
           {},
           {{"x", TensorDType::kF16, {0}}},
           {{"x", TensorDType::kF16, {0, 3}}, {"y", TensorDType::kBF16, {0}}}}) {
    auto writer =
        SafetensorsWriter::Create(folder.path(), tensors, {.if_exists = IfExists::kReplace});
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->Finish(), IsOk());
    const auto model = ModelFolder::Open(folder.path());
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ((*model)->names().size(), tensors.size());
  }
}

TEST(SafetensorsWriter, NothingIsOverwrittenUnlessTold) {
  const TempFolder folder;
  ASSERT_THAT(WriteThree(folder.path(), {}), IsOk());
  EXPECT_THAT(WriteThree(folder.path(), {}),
              IsError(absl::StatusCode::kAlreadyExists, "is not overwritten"));
  EXPECT_THAT(WriteThree(folder.path(), {.max_shard_bytes = 28}),
              IsError(absl::StatusCode::kAlreadyExists, "model.safetensors: exists"));
  EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"model.safetensors"}));
}

TEST(SafetensorsWriter, AFileThatAppearsMeanwhileIsNotOverwritten) {
  const TempFolder folder;
  auto writer = SafetensorsWriter::Create(folder.path(), ThreeTensors(), {});
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Append(Bytes(TwelveValues())), IsOk());
  WriteFile(folder / kWeightsFile, "theirs");
  EXPECT_THAT((*writer)->Finish(), IsError(absl::StatusCode::kAlreadyExists, "model.safetensors"));
  writer->reset();
  EXPECT_EQ(ReadFile(folder / kWeightsFile), "theirs");
  EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"model.safetensors"}));
}

TEST(SafetensorsWriter, ReplacingRemovesTheOtherLayoutAndNothingElse) {
  const TempFolder folder;
  WriteFile(folder / "config.json", "{}");
  WriteFile(folder / "model-x.safetensors", "theirs");
  ASSERT_THAT(WriteThree(folder.path(), {.max_shard_bytes = 1}), IsOk());
  ASSERT_THAT(WriteThree(folder.path(), {.if_exists = IfExists::kReplace}), IsOk());
  EXPECT_EQ(FilesIn(folder.path()),
            (std::vector<std::string>{"config.json", "model-x.safetensors", "model.safetensors"}));
  ASSERT_THAT(WriteThree(folder.path(), {.max_shard_bytes = 28, .if_exists = IfExists::kReplace}),
              IsOk());
  EXPECT_EQ(FilesIn(folder.path()).size(), 5u);
  ExpectThree(folder.path());
}

TEST(SafetensorsWriter, UnfinishedLeavesTheFolderAsItWas) {
  const TempFolder folder;
  ASSERT_THAT(WriteThree(folder.path(), {}), IsOk());
  const std::string before = ReadFile(folder / kWeightsFile);
  {
    auto writer = SafetensorsWriter::Create(
        folder.path(), ThreeTensors(), {.max_shard_bytes = 28, .if_exists = IfExists::kReplace});
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->Append(Bytes(TwelveValues()).first(40)), IsOk());
    EXPECT_THAT((*writer)->Finish(),
                IsError(absl::StatusCode::kFailedPrecondition, "8 bytes of the tensors"));
  }
  EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"model.safetensors"}));
  EXPECT_EQ(ReadFile(folder / kWeightsFile), before);
}

TEST(SafetensorsWriter, MoreBytesThanDeclaredAreAnError) {
  const TempFolder folder;
  auto writer = SafetensorsWriter::Create(folder.path(), {{"x", TensorDType::kF16, {2}}}, {});
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->Append(Bytes({1.0f, 2.0f})),
              IsInvalid("4 bytes more than the tensors declared have"));
}

TEST(SafetensorsWriter, ImpossibleDeclarationsAreErrors) {
  const TempFolder folder;
  const auto create = [&](std::vector<TensorDeclaration> tensors) {
    return SafetensorsWriter::Create(folder.path(), std::move(tensors), {});
  };
  EXPECT_THAT(create({{"x", TensorDType::kF32, {1}}, {"x", TensorDType::kF32, {2}}}),
              IsInvalid("\"x\": the name is taken"));
  EXPECT_THAT(create({{"__metadata__", TensorDType::kF32, {1}}}), IsInvalid("the name is taken"));
  EXPECT_THAT(create({{"x", TensorDType::kF32, {-1}}}), IsInvalid("has no size in 64 bits"));
  EXPECT_THAT(create({{"x", TensorDType::kF32, {int64_t{1} << 62, 2}}}),
              IsInvalid("has no size in 64 bits"));
  EXPECT_THAT(SafetensorsWriter::Create(folder / "none", {}, {}),
              IsError(absl::StatusCode::kNotFound, "is not a folder"));
  EXPECT_TRUE(FilesIn(folder.path()).empty());
}

TEST(SafetensorsWriter, AFolderThatTakesNoFilesIsNamed) {
  EXPECT_THAT(StatusOf(SafetensorsWriter::Create("/proc", ThreeTensors(), {})).ToString(),
              testing::HasSubstr("/proc/model.safetensors: cannot be created"));
}

}  // namespace
}  // namespace spillway::hf
