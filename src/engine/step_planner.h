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
#include "src/base/mutex.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/plan_service.h"
#include "src/engine/rate_meter.h"
#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/tile_bits.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// What a step could not have been quicker than, in seconds, computing for as long as it did, at
// rates that the run has shown.
struct TimeBound {
  double seconds = 0;    // zero: unknown
  double computing = 0;  // alone
  double transfers = 0;  // alone
};

// The events of a step that has ended. Whoever reads them, on any thread, holds the lock.
struct StepEvents {
  base::Mutex mu;
  plan::EventLog log ABSL_GUARDED_BY(mu);
};

class StepPlanner {
 public:
  // Steps that are remembered; when more differ, all are forgotten.
  static constexpr size_t kMostSteps = 16;

  // Plans are made by `service`, which nobody else uses and which ends before the table; null:
  // nothing is planned or written down.
  StepPlanner(const plan::PlanOptions& options, const TileTable* tiles, PlanService* service)
      : options_(options), tiles_(*tiles), service_(service) {}

  // A new tile of the table; a step begins after the last. Plans that do not use it stay, but where
  // it will rest they may have frames. Seconds are on any clock.
  void AddTile(TileIndex tile, double now);

  // Where the step that runs is written down; null while it is not: without a store some tile has
  // no place in pinned memory, or more has happened since the last EndStep than a step has, as
  // where nobody calls it.
  plan::StepRecorder* Recording();

  // A step is over and the next begins. What this costs does not grow with the step's events, and
  // with its tiles by a bit each. InvalidArgument: leases are held; ResourceExhausted: the step was
  // too long to write down.
  absl::Status EndStep(double now, const TilesNow& tiles);
  // The plan of the step that is expected; null if none is, as after one that was empty or not
  // written down, and while it is being made: look again later. Whoever follows it is alone, and
  // lets go of it before the next EndStep if it is another by then. ResourceExhausted: it does not
  // fit; InvalidArgument: leases did not end in the step in which they began, or the like.
  absl::StatusOr<std::shared_ptr<PlanFollower>> Next();
  // Nothing was written down since the last step's end.
  bool is_between_steps() const { return recorder_.num_events() == 0 && !is_too_long_; }

  // Of the step that ended last. Its TimeBound may be asked for at leisure, on another thread.
  struct LastStep {
    std::shared_ptr<StepEvents> events;
    std::shared_ptr<const plan::SecondsBound> bound;  // null: it has no plan
    TimeBound At(const plan::Rates& rates) const;
  };
  LastStep last_step() const;

  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Known {
    std::shared_ptr<StepEvents> events;
    plan::TileBits used;
    uint64_t seen = 0;
    std::map<uint64_t, uint64_t> followed_by;  // times, by fingerprint
    // The tiles as the plan has them: see TilesNow.
    TileIndex num_tiles = 0;
    plan::TileBits with_bytes;
    uint64_t num_reserved_frames = 0;
    bool all_fit = false;
    // Of the plan for that: made, failed or being made; zero: not asked for.
    uint64_t request = 0;
    std::shared_ptr<PlanFollower> plan;
    absl::Status failure;
    std::shared_ptr<const plan::SecondsBound> bound;
  };

  // A step in which some hundred micro-batches lease every tile has more; so has what goes on where
  // nobody calls EndStep.
  static constexpr size_t kEventsATile = 256, kMoreEvents = 4096;
  size_t MostEvents() const { return kEventsATile * tiles_.size() + kMoreEvents; }
  void TakeEvents();
  bool IsKnown(uint64_t fingerprint) const;
  void Learn(uint64_t fingerprint);
  void Update(Known* step, const TilesNow& tiles);
  PlanService::TraceMaker TraceOf(const Known& step) const;
  uint64_t Expected(uint64_t last) const;
  void TakeMade();

  const plan::PlanOptions options_;
  const TileTable& tiles_;
  PlanService* const service_;
  uint64_t frames_bytes_ = 0;     // of all tiles
  bool rests_on_device_ = false;  // one of them does
  plan::StepRecorder recorder_;
  std::shared_ptr<StepEvents> last_events_;  // of the step before
  bool is_too_long_ = false;
  std::map<uint64_t, Known> known_;  // by fingerprint
  uint64_t last_ = 0;                // the step before; 0: none
  uint64_t expected_ = 0;            // the step that runs; 0: none
  uint64_t requests_ = 0;            // plans asked for
  uint64_t plans_made_ = 0;
  std::vector<std::shared_ptr<const void>> left_;  // whoever follows it lets go before EndStep
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_STEP_PLANNER_H_
