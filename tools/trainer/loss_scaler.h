// SPDX-License-Identifier: Apache-2.0
//
// Dynamic loss scaling with the semantics of torch.amp.GradScaler: the scale grows after a run of
// good steps, and shrinks after a step whose gradient overflowed and whose update is skipped. The
// scale is a float, as in PyTorch.

#ifndef SPILLWAY_TOOLS_TRAINER_LOSS_SCALER_H_
#define SPILLWAY_TOOLS_TRAINER_LOSS_SCALER_H_

#include <cstdint>

namespace spillway::trainer {

// Below this loss scale fp16 gradients vanish. If a gradient still overflows there, the scale is
// not the cause.
inline constexpr float kSmallestLossScale = 0x1.0p-24F;

struct LossScalerOptions {
  bool enabled = true;           // false: the scale is 1 and never changes
  double initial_scale = 65536;  // at least kSmallestLossScale
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows

  friend bool operator==(const LossScalerOptions&, const LossScalerOptions&) = default;
};

// The state of a scaler that a commit holds.
struct LossScalerState {
  float scale = 1;
  int64_t good_steps = 0;  // since the last change of the scale

  friend bool operator==(const LossScalerState&, const LossScalerState&) = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options);

  float scale() const { return state_.scale; }
  bool enabled() const { return options_.enabled; }

  // Updates the scale after a step. `overflow`: a gradient was not finite, so the step is skipped.
  // The scale stays as it is if growth would take it out of float's range.
  void Update(bool overflow);

  const LossScalerState& state() const { return state_; }
  void Restore(const LossScalerState& state) { state_ = state; }

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_LOSS_SCALER_H_
