// SPDX-License-Identifier: Apache-2.0
//
// The tiles with which a step of any model is simulated at once: a few thousand, each of them small
// beside the budgets.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_LARGE_TILES_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_LARGE_TILES_H_

#include <cstdint>

#include "src/plan/plan.h"
#include "tools/spillway/plan/question.h"
#include "tools/trainer/model.h"

namespace spillway::command {

struct LargeTiles {
  trainer::TileSizes sizes;  // at least the model's own
  int64_t layers = 0;        // fewer than the model's: too many tiles to simulate at once
};

LargeTiles ChooseLargeTiles(const Question& question, const plan::PlanOptions& budgets);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_LARGE_TILES_H_
