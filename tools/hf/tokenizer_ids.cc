// SPDX-License-Identifier: Apache-2.0
//
// The file is parsed as a stream of events, because a vocabulary of 256,000 tokens with its merges
// would take some hundred megabytes as a tree of values.

#include "tools/hf/tokenizer_ids.h"

#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/hf/file.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;  // as spillway-import

// Collects `model.vocab` and the contents of `added_tokens`. The vocabulary is an object of ids or,
// of a Unigram model, an array of [token, score], where a token's place is its id.
class TokenReader : public nlohmann::json_sax<json> {
 public:
  const std::string& fault() const { return fault_; }
  bool has_vocabulary() const { return has_vocabulary_; }
  const std::unordered_map<std::string, uint64_t>& vocabulary() const { return vocabulary_; }
  const std::vector<std::string>& added() const { return added_; }

  bool null() override { return NoId("null"); }
  bool boolean(bool) override { return NoId("true or false"); }
  bool number_integer(number_integer_t value) override { return NoId(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return NoId(text); }
  bool binary(binary_t&) override { return true; }

  bool number_unsigned(number_unsigned_t value) override {
    if (IsInVocabulary() && !open_.back().is_array) vocabulary_[open_.back().key] = value;
    return true;
  }

  bool string(string_t& value) override {
    if (open_.size() == 3 && open_[0].key == "added_tokens" && open_[2].key == "content")
      added_.push_back(value);
    const bool is_first_of_pair = open_.size() == 4 && open_[0].key == "model" &&
                                  open_[1].key == "vocab" && open_[3].is_array &&
                                  open_[3].size++ == 0;
    if (is_first_of_pair) vocabulary_.emplace(value, open_[2].size++);
    return NoId("a string");
  }

  bool start_object(size_t) override { return Open(false); }
  bool start_array(size_t) override { return Open(true); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    open_.back().key = name;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fault_ = absl::StrCat("is not valid JSON at byte ", position);
    return false;
  }

 private:
  struct Container {
    bool is_array = false;
    std::string key;  // of the value that is being read
    uint64_t size = 0;
  };

  // Whether the value that is being read is an entry of the vocabulary.
  bool IsInVocabulary() const {
    return open_.size() == 3 && open_[0].key == "model" && open_[1].key == "vocab";
  }

  // Reports a value that is no id, where one is expected.
  bool NoId(std::string_view value) {
    if (!IsInVocabulary() || open_.back().is_array) return true;
    fault_ = absl::StrCat("model.vocab gives ", Quoted(open_.back().key), " the id ",
                          std::string(value), "; a whole number from 0 on is expected");
    return false;
  }

  bool Open(bool is_array) {
    if (open_.size() == kMaxJsonDepth) {
      fault_ = absl::StrCat("is nested more than ", kMaxJsonDepth, " deep");
      return false;
    }
    open_.push_back({.is_array = is_array});
    has_vocabulary_ = has_vocabulary_ || IsInVocabulary();
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::vector<Container> open_;  // from the whole file inwards
  std::unordered_map<std::string, uint64_t> vocabulary_;
  std::vector<std::string> added_;
  bool has_vocabulary_ = false;
  std::string fault_;
};

// Returns the token with the largest id, and the id; of an empty tokenizer: "" and 0.
std::pair<std::string, uint64_t> LargestId(const TokenReader& tokens) {
  std::pair<std::string, uint64_t> largest;
  const auto take = [&](const std::string& token, uint64_t id) {
    if (id >= largest.second) largest = {token, id};
  };
  for (const auto& [token, id] : tokens.vocabulary()) take(token, id);
  uint64_t next = tokens.vocabulary().size();
  std::unordered_set<std::string> seen;
  for (const std::string& token : tokens.added()) {
    const bool is_new =
        !token.empty() && !tokens.vocabulary().contains(token) && seen.insert(token).second;
    if (is_new) take(token, next++);
  }
  return largest;
}

}  // namespace

absl::Status CheckTokenizerIds(const std::string& folder, int64_t vocab_size) {
  const std::string path = absl::StrCat(folder, "/tokenizer.json");
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxTokenizerBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  SPILLWAY_RETURN_IF_ERROR(text.status());
  TokenReader tokens;
  if (!json::sax_parse(text->begin(), text->end(), &tokens)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tokens.fault()));
  }
  if (!tokens.has_vocabulary()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds no model.vocab, so it is no tokenizer; put the model's there"));
  }
  const auto [token, id] = LargestId(tokens);
  if (id < static_cast<uint64_t>(vocab_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": gives ", Quoted(token), " the id ", id, "; config.json has a vocab_size of ",
      vocab_size,
      ": make the model's embeddings larger (in transformers: ", "model.resize_token_embeddings(",
      id + 1, "), then save_pretrained), or take the token out of tokenizer.json"));
}

}  // namespace spillway::hf
