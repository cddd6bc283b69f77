// SPDX-License-Identifier: Apache-2.0
//
// Which step comes next, and its plan. Steps are written down as they run; one that was seen before
// is expected to be followed by what followed it before, so that a training step, an accumulation
// step and an evaluation each keep their plan. Plans are made beside the run. Not thread-safe.

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
#include "src/engine/plan_service.h"
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

  // Plans are made by `service`, which nobody else uses.
  StepPlanner(const plan::PlanOptions& options, PlanService* service)
      : options_(options), service_(service) {}

  // A new tile, of the next index; a step begins after the last. Plans that do not use it stay, but
  // where it will rest they may have frames. Seconds are on any clock.
  void AddTile(const plan::TraceTile& tile, double now);

  // Where the step that runs is written down; null while it is not: without a store some tile has
  // no home in pinned memory, or more has happened since the last EndStep than a step has, as where
  // nobody calls it.
  plan::TraceRecorder* Recording();

  // What is true of the tiles as a step ends. The hash is another if something of them is.
  struct TilesNow {
    uint64_t hash = 0;
    std::function<plan::TileNow(plan::TileIndex)> tile;
  };
  // A step is over and the next begins; of one that was seen before, what this costs does not grow
  // with it. InvalidArgument: leases were held, or the like; ResourceExhausted: the step was too
  // long to write down.
  absl::Status EndStep(double now, const TilesNow& tiles);
  // The plan of the step that is expected; null if none is, as after one that was empty or not
  // written down, and while it is being made: look again later. ResourceExhausted: it does not fit.
  absl::StatusOr<std::shared_ptr<const StepPlan>> Next();
  // Nothing was written down since the last step's end.
  bool is_between_steps() const { return recorder_.num_events() == 0 && !is_too_long_; }

  // Of the step that ended last; unknown without a plan for it.
  TimeBound BoundTime(const plan::Rates& rates) const;

  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Known {
    plan::Trace trace;
    std::vector<bool> is_used;  // by tile
    uint64_t seen = 0;
    std::map<uint64_t, uint64_t> followed_by;  // times, by fingerprint
    uint64_t tiles_hash = 0;                   // TilesNow's, which `trace.tiles` say in full
    // Of the plan for the trace as it is: made, failed or being made; zero: not asked for.
    uint64_t request = 0;
    std::shared_ptr<const StepPlan> plan;
    absl::Status failure;
    std::optional<plan::SecondsBound> bound;
  };

  // A step in which some hundred micro-batches lease every tile has more; so has what goes on where
  // nobody calls EndStep.
  static constexpr size_t kEventsATile = 256, kMoreEvents = 4096;
  size_t MostEvents() const { return kEventsATile * num_tiles_ + kMoreEvents; }
  void Update(Known* step, const TilesNow& tiles);
  uint64_t Expected(uint64_t last) const;
  void TakeMade();

  const plan::PlanOptions options_;
  PlanService* const service_;
  uint64_t frames_bytes_ = 0;     // of all tiles
  bool rests_on_device_ = false;  // one of them does
  plan::TraceRecorder recorder_;
  std::vector<plan::TraceEvent> last_events_;  // of the step before
  size_t num_tiles_ = 0;
  bool is_too_long_ = false;
  std::map<uint64_t, Known> known_;  // by fingerprint
  uint64_t last_ = 0;                // the step before; 0: none
  uint64_t expected_ = 0;            // the step that runs; 0: none
  uint64_t requests_ = 0;            // plans asked for
  uint64_t plans_made_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_STEP_PLANNER_H_
