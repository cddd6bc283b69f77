// SPDX-License-Identifier: Apache-2.0
//
// Tests the sources of initial weights: folders that fit the model or do not, and random
// initialisation.

#include "tools/trainer/weight_source.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/heap_engine.h"
#include "tests/temp_folder.h"
#include "tests/trainer/small_model.h"
#include "tools/hf/safetensors_writer.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

using test::TempFolder;
using ::testing::HasSubstr;

// Writes the weights of SmallConfig to a folder. A test may change some tensors first.
class FolderWeights : public ::testing::Test {
 protected:
  FolderWeights() {
    HeapEngine engine;
    ThreadPool pool(1);
    const auto model =
        Model::Create(&engine, &pool, SmallConfig(), {.sequence = 4}, RandomWeights(3));
    for (const Parameter& parameter : (*model)->parameters()) {
      tensors_.push_back({parameter.name, hf::TensorDType::kF32, parameter.shape});
      const auto values = engine.Values<float>(parameter.tensors.master);
      values_.insert(values_.end(), values.begin(), values.end());
    }
  }

  absl::Status WriteAndOpen() {
    auto writer = hf::SafetensorsWriter::Create(folder_.path(), tensors_,
                                                {.if_exists = hf::IfExists::kReplace});
    EXPECT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*writer)->Append(std::as_bytes(std::span(values_))).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
    return OpenFolderWeights(folder_.path(), SmallConfig()).status();
  }

  TempFolder folder_;
  std::vector<hf::TensorDeclaration> tensors_;
  std::vector<float> values_;
};

TEST_F(FolderWeights, ThatFitAreRead) {
  ASSERT_TRUE(WriteAndOpen().ok());
  const WeightSource source = *OpenFolderWeights(folder_.path(), SmallConfig());
  EXPECT_TRUE(CheckFinite(SmallConfig(), source).ok());
  const Reader reader = *source({tensors_[0].name, tensors_[0].shape});
  std::vector<float> piece(10);
  ASSERT_TRUE(reader(5 * sizeof(float), std::as_writable_bytes(std::span(piece))).ok());
  EXPECT_EQ(piece, std::vector<float>(values_.begin() + 5, values_.begin() + 15));
}

TEST_F(FolderWeights, ATensorTooManyIsNamed) {
  tensors_.push_back({"model.layers.0.self_attn.q_proj.bias", hf::TensorDType::kF32, {24}});
  values_.resize(values_.size() + 24);
  const absl::Status status = WriteAndOpen();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("q_proj.bias"));
}

TEST_F(FolderWeights, ANameOfTheFileIsEscapedAndCutOff) {
  tensors_.push_back({"\033[2J" + std::string(100'000, 'x'), hf::TensorDType::kF32, {1}});
  values_.resize(values_.size() + 1);
  const std::string message(WriteAndOpen().message());
  EXPECT_THAT(message, HasSubstr("a tensor \"\\u001b[2Jxxx"));
  EXPECT_LT(message.size(), 1000U);
}

TEST_F(FolderWeights, ATypeOfTheFileIsEscapedAndCutOff) {
  ASSERT_TRUE(WriteAndOpen().ok());
  const std::string path = folder_ / "model.safetensors";
  std::string file = test::ReadFile(path);
  // The header begins with its size and may be padded with spaces. A type that the reader does not
  // know may have any size.
  const size_t header_bytes = static_cast<unsigned char>(file[0]) +
                              256 * static_cast<size_t>(static_cast<unsigned char>(file[1]));
  std::string header = file.substr(8, header_bytes);
  header.replace(header.find("\"F32\""), 5, "\"\\u001b[2J" + std::string(20'000, 'x') + "\"");
  const uint64_t size = header.size();
  const std::string prefix(reinterpret_cast<const char*>(&size), sizeof(size));
  test::WriteFile(path, prefix + header + file.substr(8 + header_bytes));
  const absl::Status status = OpenFolderWeights(folder_.path(), SmallConfig()).status();
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("is of type \"\\u001b[2Jxxx"));
  EXPECT_LT(message.size(), 1000U);
}

TEST_F(FolderWeights, TheHeadOfATiedEmbeddingMayBeItsCopyAndNothingElse) {
  ASSERT_EQ(tensors_[0].name, "model.embed_tokens.weight");
  tensors_.push_back({"lm_head.weight", hf::TensorDType::kF32, {53, 24}});
  const std::vector<float> embedding(values_.begin(), values_.begin() + 53 * 24);
  values_.insert(values_.end(), embedding.begin(), embedding.end());
  ASSERT_TRUE(WriteAndOpen().ok());
  EXPECT_TRUE(CheckFinite(SmallConfig(), *OpenFolderWeights(folder_.path(), SmallConfig())).ok());
  values_.back() += 1;
  ASSERT_TRUE(WriteAndOpen().ok()) << "opening reads no values";
  const absl::Status status =
      CheckFinite(SmallConfig(), *OpenFolderWeights(folder_.path(), SmallConfig()));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tie_word_embeddings is true but lm_head.weight differs from "
                        "model.embed_tokens.weight; set it to false"));
  tensors_.back().shape = {24, 53};
  EXPECT_THAT(std::string(WriteAndOpen().message()),
              HasSubstr("lm_head.weight has the shape [24, 53]"));
}

TEST_F(FolderWeights, AMissingTensorIsNamed) {
  tensors_.back().name = "model.norm.w";
  const absl::Status status = WriteAndOpen();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm.weight"));
}

TEST_F(FolderWeights, AShapeThatDoesNotFitIsNamed) {
  ASSERT_EQ(tensors_[0].shape, (std::vector<int64_t>{53, 24}));
  tensors_[0].shape = {24, 53};
  const absl::Status status = WriteAndOpen();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("[24, 53]"));
}

TEST_F(FolderWeights, AValueThatIsNotFiniteIsNamedWithItsPlace) {
  values_[100] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(WriteAndOpen().ok()) << "opening reads no values";
  const absl::Status status =
      CheckFinite(SmallConfig(), *OpenFolderWeights(folder_.path(), SmallConfig()));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.embed_tokens.weight: element 100 (inf) is not finite"));
}

std::vector<float> Draw(uint64_t seed, const ParameterShape& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  const Reader reader = *RandomWeights(seed)(parameter);
  EXPECT_TRUE(reader(0, std::as_writable_bytes(std::span(values))).ok());
  return values;
}

TEST(RandomWeights, PiecesAreThoseOfTheWhole) {
  const Reader reader = *RandomWeights(1)({"w", {100, 100}});
  std::vector<float> pieces(10000);
  const std::vector<std::pair<size_t, size_t>> cuts = {{0, 1}, {1, 777}, {777, 10000}};
  for (const auto& [begin, end] : cuts) {
    const std::span<float> piece = std::span(pieces).subspan(begin, end - begin);
    ASSERT_TRUE(reader(begin * sizeof(float), std::as_writable_bytes(piece)).ok());
  }
  EXPECT_EQ(pieces, Draw(1, {"w", {100, 100}}));
}

TEST(RandomWeights, AreNormalWithTheDeviationStated) {
  double sum = 0;
  double squares = 0;
  int beyond_two_deviations = 0;
  for (const float value : Draw(1, {"w", {1000, 100}})) {
    sum += value;
    squares += double{value} * value;
    beyond_two_deviations += std::abs(value) > 0.04F ? 1 : 0;
  }
  EXPECT_NEAR(sum / 1e5, 0, 3e-4);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.02, 3e-4);
  EXPECT_NEAR(beyond_two_deviations / 1e5, 0.0455, 0.005);
}

TEST(RandomWeights, SeedsAndNamesDiffer) {
  EXPECT_NE(Draw(1, {"w", {8, 8}}), Draw(2, {"w", {8, 8}}));
  EXPECT_NE(Draw(1, {"w", {8, 8}}), Draw(1, {"v", {8, 8}}));
}

TEST(RandomWeights, NormsAreOneAndBiasesZero) {
  EXPECT_EQ(Draw(1, {"n", {64}, First::kOnes}), std::vector<float>(64, 1.0F));
  EXPECT_EQ(Draw(1, {"b", {64}, First::kZeros}), std::vector<float>(64, 0.0F));
}

}  // namespace
}  // namespace spillway::trainer
