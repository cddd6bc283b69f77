// SPDX-License-Identifier: Apache-2.0
//
// The evaluation loop.

#include "tools/trainer/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"

namespace spillway::trainer {

absl::StatusOr<Evaluation> Evaluate(Model* model, const TokenData& data, int64_t sequence,
                                    int64_t num_windows, const std::atomic<bool>* stop,
                                    const std::function<void(int64_t, int64_t)>& on_window) {
  const auto begin = std::chrono::steady_clock::now();
  Evaluation evaluation;
  evaluation.windows = static_cast<int64_t>(std::min<uint64_t>(num_windows, data.num_windows()));
  std::vector<int32_t> inputs(sequence);
  std::vector<int32_t> targets(sequence);
  for (int64_t window = 0; window < evaluation.windows; ++window) {
    if (stop != nullptr && stop->load()) return absl::CancelledError("interrupted");
    SPILLWAY_RETURN_IF_ERROR(data.Read(window, inputs, targets));
    SPILLWAY_ASSIGN_OR_RETURN(const double loss, model->Loss(inputs, targets));
    if (!std::isfinite(loss)) {
      return absl::OutOfRangeError(absl::StrFormat(
          "the loss of window %d is not finite: the weights are broken, or overflow "
          "in this precision; try bf16 or fp32",
          window));
    }
    evaluation.loss += loss;
    if (on_window) on_window(window + 1, evaluation.windows);
  }
  evaluation.loss /= static_cast<double>(evaluation.windows);
  evaluation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return evaluation;
}

}  // namespace spillway::trainer
