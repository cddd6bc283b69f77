// SPDX-License-Identifier: Apache-2.0
//
// The trace of a step that was recorded dry, from which the planner computes what the step would
// move under options that are not decided yet. In the trace, computing takes no time.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STEP_RECORDED_TRACE_H_
#define SPILLWAY_TOOLS_SPILLWAY_STEP_RECORDED_TRACE_H_

#include "src/plan/trace.h"
#include "tools/trainer/dry_run.h"

namespace spillway::command {

// Returns the trace, with tiles and events as an engine records them. Every tensor that is not
// transient has bytes from an earlier step.
plan::Trace TraceOf(const trainer::RecordedStep& step);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STEP_RECORDED_TRACE_H_
