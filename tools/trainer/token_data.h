// SPDX-License-Identifier: Apache-2.0
//
// Tokenized text as windows: `train.npy` or `valid.npy` of a data folder, checked whole when it is
// opened and read a window at a time, so that data larger than memory costs none.

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

// Window i of sequence length S: inputs are tokens [iS, (i+1)S), targets the same one further.
// There are ⌊(tokens − 1) / S⌋ windows; the up to S tokens after the last are not used. Whoever
// runs past the last window starts again at the first.
class TokenData {
 public:
  // Opens `folder`/`split`.npy, split "train" or "valid". Reads it once through: a token id that is
  // not below `vocab_size` is InvalidArgument naming its index, as is a file of fewer than S + 1
  // tokens, and a meta.json whose vocab_size is above the model's (another tokenizer). NotFound
  // without the file.
  static absl::StatusOr<std::unique_ptr<TokenData>> Open(const std::string& folder,
                                                         const std::string& split,
                                                         int64_t vocab_size, int64_t sequence);

  uint64_t num_tokens() const { return file_->num_elements(); }
  uint64_t num_windows() const { return (num_tokens() - 1) / sequence_; }
  // "1139298 tokens, xxh3 0123456789abcdef": equal for equal token ids, whatever their width in the
  // file.
  const std::string& fingerprint() const { return fingerprint_; }

  // Fills one window's inputs and targets, S ids each. REQUIRES: window < num_windows(). An id out
  // of range is an error here too: the file may have changed since.
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
