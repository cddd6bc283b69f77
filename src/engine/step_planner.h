// SPDX-License-Identifier: Apache-2.0
//
// Which step comes next, and its plan. Steps are written down as they run; one that was seen before
// is expected to be followed by what followed it before, so that a training step, an accumulation
// step and an evaluation each keep their plan. Pure but for the times that are passed in; not
// thread-safe.

#ifndef SPILLWAY_ENGINE_STEP_PLANNER_H_
#define SPILLWAY_ENGINE_STEP_PLANNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "src/engine/plan_follower.h"
#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

class StepPlanner {
 public:
  // Steps that are remembered; when more differ, all are forgotten.
  static constexpr size_t kMostSteps = 16;

  explicit StepPlanner(plan::PlanOptions options) : options_(options) {}

  // A new tile, of the next index; a step begins after the last. Seconds are on any clock.
  void AddTile(const plan::TraceTile& tile, double now);

  // The step that runs writes itself down.
  plan::TraceRecorder& recorder() { return recorder_; }

  // A step is over and the next begins: the plan of the one that is expected; null if the step was
  // empty, or if pinned memory holds all tiles at once: then nothing need pass through NVMe, and
  // what the device lacks is a copy away. `has_bytes`: whether a tile was ever written.
  // InvalidArgument: leases were held, or the like; ResourceExhausted: the plan does not fit.
  absl::StatusOr<std::shared_ptr<const StepPlan>> EndStep(
      double now, const std::function<bool(plan::TileIndex)>& has_bytes);

  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Known {
    plan::Trace trace;
    uint64_t seen = 0;
    std::map<uint64_t, uint64_t> followed_by;  // times, by fingerprint
    std::shared_ptr<const StepPlan> plan;      // null: not made yet
  };

  Known& Expected(uint64_t last);

  const plan::PlanOptions options_;
  uint64_t frames_bytes_ = 0;  // of all tiles
  plan::TraceRecorder recorder_;
  std::map<uint64_t, Known> known_;  // by fingerprint
  uint64_t last_ = 0;                // the step before; 0: none
  uint64_t plans_made_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_STEP_PLANNER_H_
