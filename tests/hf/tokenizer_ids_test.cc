// SPDX-License-Identifier: Apache-2.0
//
// Tests which ids a tokenizer.json gives. tests/python/same_folders_test.py compares them with
// those that Hugging Face tokenizers gives.

#include "tools/hf/tokenizer_ids.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

// Returns the verdict on a tokenizer with this vocabulary and these added tokens, for five ids.
absl::Status Check(const std::string& vocab, const std::string& added) {
  const TempFolder folder;
  WriteFile(folder / "tokenizer.json", R"({"version":"1.0","added_tokens":[)" + added +
                                           R"(],"model":{"type":"BPE","vocab":)" + vocab +
                                           R"(,"merges":[["a","b"]]}})");
  return CheckTokenizerIds(folder.path(), 5);
}

std::string Added(const std::string& content, int id) {
  return R"({"id":)" + std::to_string(id) + R"(,"content":")" + content + R"(","special":true})";
}

TEST(TokenizerIds, AFolderWithoutATokenizerIsFine) {
  const TempFolder folder;
  EXPECT_THAT(CheckTokenizerIds(folder.path(), 1), IsOk());
}

TEST(TokenizerIds, TheVocabularysIds) {
  EXPECT_THAT(Check(R"({"a":0,"b":4,"vocab":1})", ""), IsOk());
  EXPECT_THAT(Check("{}", ""), IsOk());
  EXPECT_THAT(Check(R"({"a":0,"b":5})", ""),
              IsInvalid("tokenizer.json: gives \"b\" the id 5; config.json has a vocab_size of 5"));
  EXPECT_THAT(Check(R"([["a",-1.5],["b",2],["c",0],["d",0],["e",0]])", ""), IsOk());
  EXPECT_THAT(Check(R"([["a",0],["b",0],["c",0],["d",0],["e",0],["f",0]])", ""),
              IsInvalid("gives \"f\" the id 5"));
}

TEST(TokenizerIds, AddedTokensFollowTheVocabulary) {
  const std::string three = R"({"a":0,"b":1,"c":2})";
  EXPECT_THAT(Check(three, Added("x", 99) + "," + Added("y", 0)), IsOk()) << "3 and 4";
  EXPECT_THAT(Check(three, Added("a", 99) + "," + Added("x", 3) + "," + Added("x", 4)), IsOk());
  EXPECT_THAT(Check(three, Added("x", 3) + "," + Added("", 4) + "," + Added("y", 4)), IsOk());
  EXPECT_THAT(Check(three, Added("x", 3) + "," + Added("y", 4) + "," + Added("<z>", 5)),
              IsInvalid("gives \"<z>\" the id 5; config.json has a vocab_size of 5: make the "
                        "model's embeddings larger (in transformers: "
                        "model.resize_token_embeddings(6), then save_pretrained), or take the "
                        "token out of tokenizer.json"));
}

TEST(TokenizerIds, MalformedFilesAreErrors) {
  EXPECT_THAT(Check(R"({"a":-1})", ""), IsInvalid("gives \"a\" the id -1; a whole number"));
  EXPECT_THAT(Check(R"({"a":1.5})", ""), IsInvalid("gives \"a\" the id 1.5; a whole number"));
  EXPECT_THAT(Check(R"({"a":"1"})", ""), IsInvalid("gives \"a\" the id a string; a whole number"));
  EXPECT_THAT(Check(R"({"a":1)", ""), IsInvalid("is not valid JSON at byte"));
  EXPECT_THAT(Check("7", ""), IsInvalid("holds no model.vocab"));
  EXPECT_THAT(Check(std::string(100'000, '['), ""), IsInvalid("is nested more than 64 deep"));
}

}  // namespace
}  // namespace spillway::hf
