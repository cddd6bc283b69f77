// SPDX-License-Identifier: Apache-2.0
//
// Text generation: draws each next token from a model's logits, greedily or by sampling. The window
// is recomputed for each token.

#ifndef SPILLWAY_TOOLS_TRAINER_GENERATOR_H_
#define SPILLWAY_TOOLS_TRAINER_GENERATOR_H_

#include <atomic>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

struct SamplingOptions {
  double temperature = 0;  // logits are divided by it; 0: always the most likely token
  int64_t top_k = 0;       // sample among the k most likely tokens only; 0: among all
  uint64_t seed = 0;
};

// Draws tokens. The same seed and logits give the same tokens on every machine with the same `exp`.
// Thread-compatible.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // Returns the index of the drawn token. Among equal logits the lower index counts as more likely.
  // InvalidArgument if a logit is not finite.
  absl::StatusOr<int32_t> Draw(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

struct GenerateOptions {
  int64_t max_tokens = 64;
  int64_t sequence = 0;  // the model's window; only the last tokens of a longer text are used
  std::vector<int64_t> eos_token_ids;  // generation stops before any of these
  SamplingOptions sampling;
};

struct Generated {
  std::vector<int32_t> tokens;  // the new tokens, without the end-of-text token
  bool reached_eos = false;
};

// Continues `prompt`. REQUIRES: it has at least one token. Cancelled if `stop` becomes true.
absl::StatusOr<Generated> Generate(Model* model, std::vector<int32_t> prompt,
                                   const GenerateOptions& options, const std::atomic<bool>& stop);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_GENERATOR_H_
