// SPDX-License-Identifier: Apache-2.0
//
// In which order a step's micro-batches go through the layers, by what each order would move: all
// layers for a micro-batch and then the next, or all micro-batches for a layer. The second reads
// weights once a direction and lets activation checkpoints wait.

#ifndef SPILLWAY_PLAN_ACCUMULATION_H_
#define SPILLWAY_PLAN_ACCUMULATION_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "src/plan/plan.h"
#include "src/plan/simulate.h"
#include "src/plan/trace.h"

namespace spillway::plan {

enum class AccumulationOrder : uint8_t { kMicroBatch, kLayer };

// A training step as the planner sees it. Layers are alike; each is cut into tiles, which are
// leased one after the other.
struct StepShape {
  int layers = 1;
  int micro_batches = 1;
  int tiles_per_layer = 1;
  uint64_t weight_bytes = 0;      // of a tile, as is leased on the device
  uint64_t gradient_bytes = 0;    // of a tile
  uint64_t master_bytes = 0;      // of a tile's master weight, and of each of its two moments
  uint64_t checkpoint_bytes = 0;  // what a layer keeps of a micro-batch for the backward pass
  double forward_seconds = 0;     // of a layer and a micro-batch; backward takes twice that
  double update_seconds = 0;      // of a layer
};

// Forward, backward and the update, which runs in pinned memory tile by tile.
Trace StepTrace(const StepShape& shape, AccumulationOrder order);

struct OrderChoice {
  AccumulationOrder order = AccumulationOrder::kMicroBatch;
  // Of each order; none: its leases do not fit.
  std::optional<SimulatedStep> micro_batch, layer;
};

// The order that takes less time, of equals the one that moves less, and of these micro-batch
// order; from a step's trace in each. An error if neither fits.
absl::StatusOr<OrderChoice> ChooseOrder(const Trace& of_micro_batch, const Trace& of_layer,
                                        const PlanOptions& options, const Rates& rates);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_ACCUMULATION_H_
