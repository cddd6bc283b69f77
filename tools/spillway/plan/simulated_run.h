// SPDX-License-Identifier: Apache-2.0
//
// The step log and the trace of a simulated run, as a real run writes them, for `spillway report`.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_SIMULATED_RUN_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_SIMULATED_RUN_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/timeline.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/step_cost.h"
#include "tools/spillway/train/run_outputs.h"

namespace spillway::command {

// Opens the files. Errors of RunOutputs::Open. UsageError if one has contents, which may be those
// of a real run, and `flags.force` is not set.
absl::StatusOr<RunOutputs> OpenSimulatedRun(const RunOutputFlags& flags);

// Writes the steps and the timeline. What a step computes is not known: loss and norm are null.
void WriteSimulatedRun(const Question& question, const StepCost& cost,
                       const std::vector<simulation::StepResult>& steps, Timeline timeline,
                       RunOutputs* outputs);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_SIMULATED_RUN_H_
