// SPDX-License-Identifier: Apache-2.0
//
// A realistic step, of SmolLM2's shape: 30 layers of 3.5 M parameters, fp16 weights and gradients,
// fp32 master weights and moments, activation checkpoints. Tiles of 2 MiB and less.

#ifndef SPILLWAY_TESTS_PLAN_MODEL_STEP_H_
#define SPILLWAY_TESTS_PLAN_MODEL_STEP_H_

#include "src/plan/accumulation.h"

namespace spillway::plan {

inline StepShape ModelShape(int tiles_per_layer = 14) {
  constexpr uint64_t kLayerParameters = 3'538'944;
  const uint64_t parameters = kLayerParameters / static_cast<uint64_t>(tiles_per_layer);
  return {.layers = 30,
          .micro_batches = 1,
          .tiles_per_layer = tiles_per_layer,
          .weight_bytes = 2 * parameters,
          .gradient_bytes = 2 * parameters,
          .master_bytes = 4 * parameters,
          .checkpoint_bytes = 1024 * 576 * 2,
          .forward_seconds = 0.004,
          .update_seconds = 0.002};
}

// What is kept from step to step.
inline uint64_t StateBytes(const Trace& trace) {
  uint64_t bytes = 0;
  for (const TraceTile& tile : trace.tiles) bytes += tile.transient ? 0 : tile.size_bytes;
  return bytes;
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_MODEL_STEP_H_
