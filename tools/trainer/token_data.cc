// SPDX-License-Identifier: Apache-2.0
//
// Opens, checks and reads windows of token ids.

#include "tools/trainer/token_data.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/hf/file.h"
#include "xxhash.h"

namespace spillway::trainer {
namespace {

constexpr uint64_t kChunkTokens = uint64_t{1} << 18;
constexpr uint64_t kMaxMetaBytes = uint64_t{1} << 20;

// Returns the size of the vocabulary that the tokens are from. If the folder has no meta.json, this
// is the model's: every id is checked anyway. A tokenizer's vocabulary may be smaller than the
// model's, which is padded.
absl::StatusOr<int64_t> ReadVocabulary(const std::string& folder, int64_t vocab_size) {
  const std::string path = folder + "/meta.json";
  const absl::StatusOr<std::string> text = hf::ReadTextFile(path, kMaxMetaBytes);
  if (absl::IsNotFound(text.status())) return vocab_size;
  SPILLWAY_RETURN_IF_ERROR(text.status());
  const nlohmann::json meta = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto it = meta.is_object() ? meta.find("vocab_size") : meta.end();
  if (!meta.is_object() || it == meta.end() || !it->is_number_unsigned()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: expected a JSON object with a whole number \"vocab_size\"", path));
  }
  if (it->get<uint64_t>() <= static_cast<uint64_t>(vocab_size)) return it->get<int64_t>();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: the tokens are from a vocabulary of %d, but the model's vocab_size is %d; tokenize the "
      "text with the tokenizer of this model",
      path, it->get<uint64_t>(), vocab_size));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenData>> TokenData::Open(const std::string& folder,
                                                           const std::string& split,
                                                           int64_t vocab_size, int64_t sequence) {
  if (sequence < 1)
    return absl::InvalidArgumentError(absl::StrFormat("a sequence of %d tokens", sequence));
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t vocabulary, ReadVocabulary(folder, vocab_size));
  const std::string path = folder + "/" + split + ".npy";
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<hf::NpyFile> file, hf::NpyFile::Open(path));
  if (file->num_elements() < static_cast<uint64_t>(sequence) + 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d tokens are too few for one window of %d and its targets; give a longer text or a "
        "smaller --seq",
        path, file->num_elements(), sequence));
  }
  std::unique_ptr<TokenData> data(
      new TokenData(std::move(file), vocabulary, static_cast<uint64_t>(sequence)));
  SPILLWAY_RETURN_IF_ERROR(data->CheckTokens());
  return data;
}

absl::Status TokenData::CheckTokens() {
  std::vector<int32_t> chunk(std::min(kChunkTokens, num_tokens()));
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  absl::Status status;
  for (uint64_t offset = 0; offset < num_tokens() && status.ok(); offset += chunk.size()) {
    const std::span<int32_t> part(chunk.data(),
                                  std::min<uint64_t>(chunk.size(), num_tokens() - offset));
    status = ReadChecked(offset, part);
    XXH3_64bits_update(state, part.data(), part.size_bytes());
  }
  fingerprint_ = absl::StrFormat("%d tokens, xxh3 %016x", num_tokens(), XXH3_64bits_digest(state));
  XXH3_freeState(state);
  return status;
}

absl::Status TokenData::ReadChecked(uint64_t offset, std::span<int32_t> out) const {
  SPILLWAY_RETURN_IF_ERROR(file_->Read(offset, out));
  const auto bad =
      std::find_if(out.begin(), out.end(), [&](int32_t id) { return id < 0 || id >= vocab_size_; });
  if (bad == out.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: token %d at index %d is outside the vocabulary (vocab_size %d, of meta.json or the "
      "model); tokenize the text with the tokenizer of this model",
      file_->path(), *bad, offset + static_cast<uint64_t>(bad - out.begin()), vocab_size_));
}

absl::Status TokenData::Read(uint64_t window, std::span<int32_t> inputs,
                             std::span<int32_t> targets) const {
  std::vector<int32_t> tokens(sequence_ + 1);
  SPILLWAY_RETURN_IF_ERROR(ReadChecked(window * sequence_, tokens));
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  return absl::OkStatus();
}

}  // namespace spillway::trainer
