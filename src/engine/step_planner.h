// SPDX-License-Identifier: Apache-2.0
//
// Which step comes next, and its plan. Steps are written down as they run; one that was seen before
// is expected to be followed by what followed it before, so that a training step, an accumulation
// step and an evaluation each keep their plan. Pure but for the times that are passed in; not
// thread-safe.

#ifndef SPILLWAY_ENGINE_STEP_PLANNER_H_
#define SPILLWAY_ENGINE_STEP_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/engine/plan_follower.h"
#include "src/engine/rate_meter.h"
#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// What a step could not have been quicker than, in seconds, computing for as long as it did, at
// rates that the run has shown.
struct TimeBound {
  double seconds = 0;    // zero: unknown
  double computing = 0;  // alone
  double transfers = 0;  // alone
};

class StepPlanner {
 public:
  // Steps that are remembered; when more differ, all are forgotten.
  static constexpr size_t kMostSteps = 16;

  explicit StepPlanner(plan::PlanOptions options) : options_(options) {}

  // A new tile, of the next index; a step begins after the last. Seconds are on any clock.
  void AddTile(const plan::TraceTile& tile, double now);

  // Where the step that runs is written down; null while it is not: without a store some tile has
  // no home in pinned memory, or more has happened since the last EndStep than a step has, as where
  // nobody calls it.
  plan::TraceRecorder* Recording();

  // A step is over and the next begins: the plan of the one that is expected; null if it was
  // empty, or not written down. `tile_now`: what is true of a tile.
  // InvalidArgument: leases were held, or the like; ResourceExhausted: the plan does not fit, or
  // the step was too long to write down.
  absl::StatusOr<std::shared_ptr<const StepPlan>> EndStep(
      double now, const std::function<plan::TileNow(plan::TileIndex)>& tile_now);

  // Of the step that ended last; unknown without a plan for it.
  TimeBound BoundTime(const plan::Rates& rates) const;

  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Known {
    plan::Trace trace;
    uint64_t seen = 0;
    std::map<uint64_t, uint64_t> followed_by;  // times, by fingerprint
    bool is_planned = false;                   // or was tried with the trace as it is
    std::shared_ptr<const StepPlan> plan;
    absl::Status failure;
    std::vector<double> computing;  // of the last, as SecondsBound has it
    std::optional<plan::SecondsBound> bound;
  };

  // A step in which some hundred micro-batches lease every tile has more; so has what goes on where
  // nobody calls EndStep.
  static constexpr size_t kEventsATile = 256, kMoreEvents = 4096;
  size_t MostEvents() const { return kEventsATile * num_tiles_ + kMoreEvents; }
  Known& Expected(uint64_t last);
  absl::Status MakePlan(Known* step);

  const plan::PlanOptions options_;
  uint64_t frames_bytes_ = 0;     // of all tiles
  bool rests_on_device_ = false;  // one of them does
  plan::TraceRecorder recorder_;
  size_t num_tiles_ = 0;
  bool is_too_long_ = false;
  std::map<uint64_t, Known> known_;  // by fingerprint
  uint64_t last_ = 0;                // the step before; 0: none
  uint64_t plans_made_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_STEP_PLANNER_H_
