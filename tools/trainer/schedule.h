// SPDX-License-Identifier: Apache-2.0
//
// The learning rate of a step: a linear warm-up, then constant or half a cosine down to zero. The
// rate is a pure function of the step's index, so that a resumed run needs no state for it.

#ifndef SPILLWAY_TOOLS_TRAINER_SCHEDULE_H_
#define SPILLWAY_TOOLS_TRAINER_SCHEDULE_H_

#include <cstdint>

namespace spillway::trainer {

enum class ScheduleKind : uint8_t { kConstant, kCosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-4;  // at the end of the warm-up
  int64_t warmup_steps = 0;     // step i < warmup_steps uses (i + 1) / warmup_steps of the rate
  int64_t total_steps = 0;      // where the cosine reaches zero; the constant schedule ignores it

  // The rate of step `step`, counted from 0. Skipped steps count too. The cosine is that of
  // Loshchilov and Hutter (arXiv:1608.03983) without restarts: rate · (1 + cos(π·p)) / 2. p goes
  // from 0 at the first step after the warm-up to 1 at total_steps, and stays there.
  double At(int64_t step) const;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_SCHEDULE_H_
