// SPDX-License-Identifier: Apache-2.0
//
// The leases of a training step, written down before there is one: those that the trainer will take
// of its tensors, from the model's configuration alone. So the planner can say what a step would
// move under options that are still open. Computing takes no time here.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_

#include "src/plan/trace.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Of a step that updates, once every tensor was written: tiles and events as the engine records
// them. REQUIRES: options.training.
plan::Trace TraceOfStep(const hf::ModelConfig& config, const trainer::ModelOptions& options);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STEP_TRACE_H_
