// SPDX-License-Identifier: Apache-2.0
//
// Tests windows of token ids: which tokens they hold, and which data is refused.

#include "tools/trainer/token_data.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_folder.h"

namespace spillway::trainer {
namespace {

using test::TempFolder;
using test::WriteFile;
using test::WriteNpy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::vector<T> Counting(size_t count) {
  std::vector<T> tokens(count);
  std::iota(tokens.begin(), tokens.end(), T{0});
  return tokens;
}

TEST(TokenData, WindowsFollowEachOtherWithTargetsOneFurther) {
  const TempFolder folder;
  WriteNpy(folder / "train.npy", Counting<uint16_t>(10));
  const auto data = TokenData::Open(folder.path(), "train", 10, 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->num_tokens(), 10U);
  EXPECT_EQ((*data)->num_windows(), 3U);
  std::vector<int32_t> inputs(3);
  std::vector<int32_t> targets(3);
  ASSERT_TRUE((*data)->Read(0, inputs, targets).ok());
  EXPECT_THAT(inputs, ElementsAre(0, 1, 2));
  EXPECT_THAT(targets, ElementsAre(1, 2, 3));
  ASSERT_TRUE((*data)->Read(2, inputs, targets).ok());
  EXPECT_THAT(inputs, ElementsAre(6, 7, 8));
  EXPECT_THAT(targets, ElementsAre(7, 8, 9));
}

TEST(TokenData, TheLastWindowNeedsItsTargets) {
  const TempFolder folder;
  WriteNpy(folder / "valid.npy", Counting<uint32_t>(9));
  const auto data = TokenData::Open(folder.path(), "valid", 10, 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->num_windows(), 2U);
}

TEST(TokenData, TheFingerprintIsThatOfTheIdsNotOfTheFile) {
  const TempFolder folder;
  WriteNpy(folder / "train.npy", Counting<uint16_t>(1000));
  WriteNpy(folder / "valid.npy", Counting<uint32_t>(1000));
  const auto narrow = TokenData::Open(folder.path(), "train", 1000, 3);
  const auto wide = TokenData::Open(folder.path(), "valid", 1000, 3);
  ASSERT_TRUE(narrow.ok() && wide.ok());
  EXPECT_EQ((*narrow)->fingerprint(), (*wide)->fingerprint());
  std::vector<uint16_t> tokens = Counting<uint16_t>(1000);
  tokens[999] = 0;
  WriteNpy(folder / "train.npy", tokens);
  EXPECT_NE((*TokenData::Open(folder.path(), "train", 1000, 3))->fingerprint(),
            (*wide)->fingerprint());
}

TEST(TokenData, ATokenOutsideTheVocabularyIsNamedWithItsIndex) {
  const TempFolder folder;
  std::vector<uint32_t> tokens(300000, 5);
  tokens[299999] = 77;
  WriteNpy(folder / "train.npy", tokens);
  const auto data = TokenData::Open(folder.path(), "train", 77, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(data.status()));
  EXPECT_THAT(std::string(data.status().message()), HasSubstr("token 77 at index 299999"));
}

TEST(TokenData, TooShortForAWindowIsRefused) {
  const TempFolder folder;
  WriteNpy(folder / "train.npy", Counting<uint16_t>(4));
  EXPECT_TRUE(TokenData::Open(folder.path(), "train", 10, 3).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(TokenData::Open(folder.path(), "train", 10, 4).status()));
}

TEST(TokenData, MissingFileIsNotFound) {
  const TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(TokenData::Open(folder.path(), "train", 10, 4).status()));
}

TEST(TokenData, MetaOfALargerVocabularyIsRefused) {
  const TempFolder folder;
  WriteNpy(folder / "train.npy", Counting<uint16_t>(8));
  WriteFile(folder / "meta.json", R"({"vocab_size": 8})");
  EXPECT_TRUE(TokenData::Open(folder.path(), "train", 8, 3).ok());
  EXPECT_TRUE(TokenData::Open(folder.path(), "train", 9, 3).ok()) << "a padded embedding is usual";
  WriteFile(folder / "meta.json", R"({"vocab_size": 9})");
  const auto data = TokenData::Open(folder.path(), "train", 8, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(data.status()));
  EXPECT_THAT(std::string(data.status().message()), HasSubstr("vocabulary of 9"));
}

TEST(TokenData, MalformedMetaIsRefused) {
  const TempFolder folder;
  WriteNpy(folder / "train.npy", Counting<uint16_t>(8));
  for (const char* text : {"", "[]", "{", "{}", R"({"vocab_size": "8"})", R"({"vocab_size": -8})",
                           R"({"vocab_size": 8.5})", R"({"vocab_size": null})"}) {
    WriteFile(folder / "meta.json", text);
    EXPECT_TRUE(absl::IsInvalidArgument(TokenData::Open(folder.path(), "train", 8, 3).status()))
        << text;
  }
}

}  // namespace
}  // namespace spillway::trainer
