// SPDX-License-Identifier: Apache-2.0
//
// The step that an engine ended last, with all that a simulation of it needs. For commands and
// comparisons: users of the library do not have it.

#ifndef SPILLWAY_ENGINE_RECORDED_STEP_H_
#define SPILLWAY_ENGINE_RECORDED_STEP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/plan/plan.h"
#include "src/plan/rates.h"
#include "src/plan/trace.h"

namespace spillway::engine {

struct RecordedStep {
  // An event's seconds_before are what its caller computed in this step. The tiles that are
  // `stored` have bytes now.
  plan::Trace trace;
  plan::Rates rates;          // that the run has shown; infinite for a link that was not used
  plan::PlanOptions budgets;  // of the engine's plans
  Placement placement = {};
  uint64_t small_bytes = 0;  // as in PagerOptions
};

// Returns the step. NotFound: none was recorded, because steps are not planned, or the last one
// could not be. ResourceExhausted: it has more events than `most_events`. REQUIRES: the engine is
// one that Engine::Open returned.
absl::StatusOr<RecordedStep> LastStep(Engine* engine, size_t most_events);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RECORDED_STEP_H_
