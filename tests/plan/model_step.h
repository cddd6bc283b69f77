// SPDX-License-Identifier: Apache-2.0
//
// Traces of training steps.

#ifndef SPILLWAY_TESTS_PLAN_MODEL_STEP_H_
#define SPILLWAY_TESTS_PLAN_MODEL_STEP_H_

#include <cstdint>

#include "src/plan/trace.h"

namespace spillway::plan {

// The shape of a training step. All layers are alike. Each is cut into tiles, which are leased one
// after the other.
struct StepShape {
  int layers = 1;
  int micro_batches = 1;
  int tiles_per_layer = 1;
  uint64_t weight_bytes = 0;      // of a tile, as it is leased on the device
  uint64_t gradient_bytes = 0;    // of a tile
  uint64_t master_bytes = 0;      // of a tile's master weight, and of each of its two moments
  uint64_t checkpoint_bytes = 0;  // kept by a layer, of a micro-batch, for the backward pass
  double forward_seconds = 0;     // of a layer and a micro-batch; backward takes twice that
  double update_seconds = 0;      // of a layer
  // Whether a layer runs all micro-batches before the next layer runs. If not, a micro-batch runs
  // all layers before the next micro-batch runs.
  bool by_layer = false;
};

// Returns the trace of forward, backward and the update, which runs in pinned memory tile by tile.
Trace StepTrace(const StepShape& shape);

// Returns the shape of SmolLM2: 30 layers of 3.5 M parameters, fp16 weights and gradients, fp32
// master weights and moments, activation checkpoints. By default, tiles have 2 MiB or less.
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

// Returns the bytes of the tiles that are retained from step to step.
inline uint64_t StateBytes(const Trace& trace) {
  uint64_t bytes = 0;
  for (const TraceTile& tile : trace.tiles) bytes += tile.transient ? 0 : tile.size_bytes;
  return bytes;
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_MODEL_STEP_H_
