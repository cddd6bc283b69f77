// SPDX-License-Identifier: Apache-2.0
//
// Sampling and the generation loop.

#include "tools/trainer/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"

namespace spillway::trainer {
namespace {

// Returns a uniform number in [0, 1) from the generator's high 53 bits. The distributions of the
// standard library give different numbers in different implementations.
double Uniform(std::mt19937_64* random) {
  return static_cast<double>((*random)() >> 11) * 0x1.0p-53;
}

// Returns the `count` most likely token ids, the most likely first.
std::vector<int32_t> MostLikely(std::span<const float> logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto more_likely = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    more_likely);
  ids.resize(count);
  return ids;
}

}  // namespace

absl::StatusOr<int32_t> Sampler::Draw(std::span<const float> logits) {
  const auto bad =
      std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (logits.empty() || bad != logits.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the model's logit of token %d is not finite: its weights are broken or overflow in this "
        "precision (try --precision fp32)",
        bad - logits.begin()));
  }
  if (options_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const size_t count =
      options_.top_k > 0 ? std::min<size_t>(options_.top_k, logits.size()) : logits.size();
  const std::vector<int32_t> ids = MostLikely(logits, count);
  std::vector<double> weights(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] =
        std::exp((static_cast<double>(logits[ids[i]]) - logits[ids[0]]) / options_.temperature);
  }
  double left = Uniform(&random_) * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.back();
}

absl::StatusOr<Generated> Generate(Model* model, std::vector<int32_t> prompt,
                                   const GenerateOptions& options, const std::atomic<bool>& stop) {
  Sampler sampler(options.sampling);
  Generated generated;
  std::vector<int32_t>& text = prompt;
  while (static_cast<int64_t>(generated.tokens.size()) < options.max_tokens) {
    if (stop.load()) return absl::CancelledError("interrupted");
    const std::span<const int32_t> all(text);
    const size_t seen = std::min<size_t>(all.size(), options.sequence);
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<float> logits,
                              model->NextTokenLogits(all.last(seen)));
    SPILLWAY_ASSIGN_OR_RETURN(const int32_t token, sampler.Draw(logits));
    const std::vector<int64_t>& eos = options.eos_token_ids;
    generated.reached_eos = std::find(eos.begin(), eos.end(), token) != eos.end();
    if (generated.reached_eos) break;
    text.push_back(token);
    generated.tokens.push_back(token);
  }
  return generated;
}

}  // namespace spillway::trainer
