// SPDX-License-Identifier: Apache-2.0
//
// Checks that a folder's tokenizer gives only ids that the model has. Of `tokenizer.json`, the
// vocabulary and the added tokens are read; all else is left to Hugging Face `tokenizers`.

#ifndef SPILLWAY_TOOLS_HF_TOKENIZER_IDS_H_
#define SPILLWAY_TOOLS_HF_TOKENIZER_IDS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace spillway::hf {

// Reads `folder`/tokenizer.json, if there is one. InvalidArgument names the token with the largest
// id if that is `vocab_size` or more, or what is malformed. An added token has the id that
// `tokenizers` gives it: that of the same text in the vocabulary, else the next free one, whatever
// the file says.
absl::Status CheckTokenizerIds(const std::string& folder, int64_t vocab_size);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_TOKENIZER_IDS_H_
