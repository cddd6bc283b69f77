// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/flops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tools/trainer/parameters.h"

namespace spillway::trainer {

double StepFlops(const hf::ModelConfig& config, const ModelOptions& options) {
  const std::vector<ParameterShape> parameters = ListParameters(config);
  double of_weights = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    // An embedding is looked up, not multiplied; a tied one also multiplies, as the head.
    const bool is_looked_up = p == kEmbeddingIndex && !config.tie_word_embeddings;
    if (parameters[p].shape.size() != 2 || is_looked_up) continue;
    const double of_each = options.groups.IsFrozen(parameters[p].name) ? 4 : 6;
    of_weights += of_each * static_cast<double>(parameters[p].elements());
  }
  const double attention = static_cast<double>(config.num_layers) *
                           static_cast<double>(config.num_heads * config.head_dim) *
                           static_cast<double>(options.sequence);
  const auto tokens =
      static_cast<double>(options.accumulate * options.micro_batch * options.sequence);
  return tokens * (of_weights + 12 * attention);
}

double BestRate(double operations, const std::function<double()>& time_round) {
  constexpr int kLeastRounds = 8;
  constexpr int kSettledRounds = 5;
  constexpr double kGain = 1.05;
  constexpr double kMostSeconds = 0.5;
  constexpr double kLeastSeconds = 1e-9;  // a round may be shorter than the clock's resolution
  double spent = time_round();            // starts threads, and BLAS allocates its buffers
  double best = 0;
  double settled_at = 0;  // the rate that later rounds would have to exceed by kGain
  int settled_rounds = 0;
  for (int round = 0; round < kLeastRounds || settled_rounds < kSettledRounds; ++round) {
    const double seconds = std::max(time_round(), kLeastSeconds);
    const double rate = operations / seconds;
    best = std::max(best, rate);
    ++settled_rounds;
    if (rate > kGain * settled_at) {
      settled_at = rate;
      settled_rounds = 0;
    }
    spent += seconds;
    if (spent >= kMostSeconds) break;
  }
  return best;
}

}  // namespace spillway::trainer
