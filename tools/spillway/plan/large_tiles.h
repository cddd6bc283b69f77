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

// `micro_batches`: of the step that is simulated.
LargeTiles ChooseLargeTiles(const Question& question, const plan::PlanOptions& budgets,
                            int64_t micro_batches);

// Where all micro-batches pass through a layer before the next layer, and the device keeps a
// layer's weights and gradients meanwhile, few large micro-batches move and compute what many small
// ones do. Makes the fewest of them that still show how one follows another.
void MergeMicroBatches(const hf::ModelConfig& config, uint64_t device_bytes,
                       trainer::ModelOptions* options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_LARGE_TILES_H_
