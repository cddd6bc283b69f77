// SPDX-License-Identifier: Apache-2.0
//
// Dynamic loss scaling.

#include "tools/trainer/loss_scaler.h"

#include <cmath>

namespace spillway::trainer {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  state_.scale = options.enabled ? static_cast<float>(options.initial_scale) : 1.0F;
}

void LossScaler::Update(bool overflow) {
  if (!options_.enabled) return;
  if (overflow) {
    state_.scale = static_cast<float>(state_.scale * options_.backoff_factor);
    state_.good_steps = 0;
    return;
  }
  if (++state_.good_steps < options_.growth_interval) return;
  state_.good_steps = 0;
  const auto grown = static_cast<float>(state_.scale * options_.growth_factor);
  if (std::isfinite(grown)) state_.scale = grown;
}

}  // namespace spillway::trainer
