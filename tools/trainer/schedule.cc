// SPDX-License-Identifier: Apache-2.0
//
// The learning-rate schedule.

#include "tools/trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spillway::trainer {

double Schedule::At(int64_t step) const {
  if (step < warmup_steps) {
    return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (kind == ScheduleKind::kConstant) return learning_rate;
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / decay_steps);
  return learning_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace spillway::trainer
