// SPDX-License-Identifier: Apache-2.0
//
// Makes the trace of a training step before any step has run: the leases that the trainer will
// take, derived from the model's configuration alone. From it the planner computes what a step
// would move under options that are not decided yet. In the trace, computing takes no time.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_

#include "src/plan/trace.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Returns the trace of a step that updates the parameters, with tiles and events as the engine
// records them. Every tensor was written in an earlier step. REQUIRES: options.training.
plan::Trace TraceOfStep(const hf::ModelConfig& config, const trainer::ModelOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_
