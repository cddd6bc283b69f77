// SPDX-License-Identifier: Apache-2.0
//
// The mean loss of a model on the first windows of a text.

#ifndef SPILLWAY_TOOLS_TRAINER_EVALUATION_H_
#define SPILLWAY_TOOLS_TRAINER_EVALUATION_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "tools/trainer/metrics/step_log.h"
#include "tools/trainer/model.h"
#include "tools/trainer/token_data.h"

namespace spillway::trainer {

// Returns the mean cross-entropy over windows 0 to `num_windows` − 1, or over all if there are
// fewer, computed one window at a time. REQUIRES: num_windows >= 1. OutOfRange if the loss of a
// window is not finite. Cancelled if `stop`, which may be null, becomes true. `on_window` is called
// after each window with the number of windows done and of all.
absl::StatusOr<Evaluation> Evaluate(Model* model, const TokenData& data, int64_t sequence,
                                    int64_t num_windows, const std::atomic<bool>* stop,
                                    const std::function<void(int64_t, int64_t)>& on_window = {});

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EVALUATION_H_
