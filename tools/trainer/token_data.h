// SPDX-License-Identifier: Apache-2.0
//
// Tokenized text as windows: `train.npy` or `valid.npy` of a data folder. The whole file is checked
// when it is opened. It is then read a window at a time, so that it may be larger than memory.

#ifndef SPILLWAY_TOOLS_TRAINER_TOKEN_DATA_H_
#define SPILLWAY_TOOLS_TRAINER_TOKEN_DATA_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/npy.h"

namespace spillway::trainer {

// Window i of sequence length S has tokens [iS, (i+1)S) as inputs, and the same range shifted by
// one token as targets. There are ⌊(tokens − 1) / S⌋ windows. The up to S tokens after the last
// window are not used. A caller that runs past the last window starts again at the first.
class TokenData {
 public:
  // Opens `folder`/`split`.npy, where `split` is "train" or "valid", and reads it through once.
  // NotFound if there is no such file. InvalidArgument: the file has fewer than S + 1 tokens; the
  // vocab_size of the folder's meta.json is above `vocab_size`, the model's (another tokenizer); or
  // a token id is not below the vocabulary's size, which is meta.json's or else the model's. The
  // message names the index of such a token.
  static absl::StatusOr<std::unique_ptr<TokenData>> Open(const std::string& folder,
                                                         const std::string& split,
                                                         int64_t vocab_size, int64_t sequence);

  uint64_t num_tokens() const { return file_->num_elements(); }
  uint64_t num_windows() const { return (num_tokens() - 1) / sequence_; }
  // "1139298 tokens, xxh3 0123456789abcdef". Equal token ids give equal fingerprints, whatever
  // their width in the file.
  const std::string& fingerprint() const { return fingerprint_; }

  // Fills one window's inputs and targets, S ids each. An id out of range is an error here too,
  // because the file may have changed since it was opened. REQUIRES: window < num_windows().
  absl::Status Read(uint64_t window, std::span<int32_t> inputs, std::span<int32_t> targets) const;

 private:
  TokenData(std::unique_ptr<hf::NpyFile> file, int64_t vocab_size, uint64_t sequence)
      : file_(std::move(file)), vocab_size_(vocab_size), sequence_(sequence) {}
  absl::Status CheckTokens();
  absl::Status ReadChecked(uint64_t offset, std::span<int32_t> out) const;

  std::unique_ptr<hf::NpyFile> file_;
  int64_t vocab_size_;
  uint64_t sequence_;
  std::string fingerprint_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TOKEN_DATA_H_
