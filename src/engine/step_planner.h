// SPDX-License-Identifier: Apache-2.0
//
// Predicts which step comes next, and provides its plan. Steps are recorded as they run. A step
// that was seen before is expected to be followed by the step that followed it before, so that a
// training step, an accumulation step and an evaluation each keep their plan. PlanService makes the
// plans beside the run. Not thread-safe.

#ifndef SPILLWAY_ENGINE_STEP_PLANNER_H_
#define SPILLWAY_ENGINE_STEP_PLANNER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/plan_service.h"
#include "src/engine/rate_meter.h"
#include "src/plan/plan.h"
#include "src/plan/tile_bits.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// The least seconds that a step could have taken, with the computing time that it had and at rates
// that the run has shown.
struct TimeBound {
  double seconds = 0;    // zero if unknown
  double computing = 0;  // of computing alone
  double transfers = 0;  // of transfers alone
};

// The events of a step that has ended. Any thread that holds them may read them. They change only
// in Take, so a reading needs no lock. The lock is taken and released after each one, so that Take
// comes after the last.
class StepEvents {
 public:
  explicit StepEvents(plan::EventLog log) : log_(std::move(log)) {}
  template <typename Reader>
  auto Read(const Reader& read) {
    auto result = read(std::as_const(log_));
    base::MutexLock lock(&mu_);
    return result;
  }
  // Takes the memory for the log of another step. REQUIRES: nobody else holds these events.
  plan::EventLog Take() {
    base::MutexLock lock(&mu_);
    return std::move(log_);
  }

 private:
  base::Mutex mu_;
  plan::EventLog log_;
};

class StepPlanner {
 public:
  // The most steps that are remembered. When one more is learned, all of them are forgotten.
  static constexpr size_t kMostSteps = 16;

  // `service` makes the plans. It must have no other user and must end before the table. If it is
  // null, no step is planned or recorded.
  StepPlanner(const plan::PlanOptions& options, const TileTable* tiles, PlanService* service)
      : options_(options), tiles_(*tiles), service_(service) {}

  // Adds the table's new tile. The step begins anew, so it begins after the last tile was added.
  // Plans are kept, as they do not use the tile. `now` is in seconds on any clock.
  void AddTile(TileIndex tile, double now);

  // The recorder of the step that runs; null while the step is not recorded. That is so if there is
  // no store and some tile has no place in pinned memory, or if more events have happened since the
  // last EndStep than a step has, for example because EndStep is never called.
  plan::StepRecorder* Recording();

  // Ends the step and begins the next. InvalidArgument: leases are held. ResourceExhausted: the
  // step was too long to record, or steps are not planned (see Recording).
  absl::Status EndStep(double now);
  // The plan of the step that is expected. Null if no step is expected, as after one that was too
  // long to record, and while the plan is being made; call again later. Only one caller may follow
  // the plan. It drops the plan before the next EndStep if Next returns another one by then.
  // ResourceExhausted: the step does not fit, or no thread can be started to make the plan.
  // Unavailable: there was no memory to make the plan. Call again later in both cases.
  // InvalidArgument: leases did not end in the step in which they began, or the trace is invalid in
  // another way.
  //
  // The plan is made anew if it assumes something else about the tiles that it uses (which of them
  // have bytes), if not all tiles fit into pinned memory any more, or if a reserved frame was taken
  // or given back. The cost does not grow with the step's events, and grows by one bit per tile.
  absl::StatusOr<std::shared_ptr<PlanFollower>> Next(const TilesNow& tiles);
  // Whether nothing was recorded since the last step's end.
  bool is_between_steps() const { return recorder_.num_events() == 0 && !is_too_long_; }

  // The step that ended last. Its time bound may be computed later and on another thread. Whoever
  // holds the plan gives it to PlanService::Free.
  struct LastStep {
    std::shared_ptr<StepEvents> events;
    std::shared_ptr<const PlanFollower> plan;  // the newest; null if the step has none
    TimeBound At(const plan::Rates& rates) const;
  };
  LastStep last_step() const;

  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Known {
    std::shared_ptr<StepEvents> events;
    plan::TileBits used;
    uint64_t seen = 0;
    std::map<uint64_t, uint64_t> followed_by;  // how often each step came next, by fingerprint
    // The state of the tiles for which the plan is made: see TilesNow.
    TileIndex num_tiles = 0;
    plan::TileBits with_bytes;
    uint64_t reserved_changes = 0;
    bool all_fit = false;
    // The number of the request for that plan, which is made, failed or being made; zero if the
    // plan was not requested.
    uint64_t request = 0;
    std::shared_ptr<PlanFollower> plan;  // the newest that was made
    uint64_t plan_request = 0;           // the request that it was made for
    absl::Status failure;
  };

  // A step with more events than this is not recorded. A step in which some hundred micro-batches
  // lease every tile has more, and so has a run that never calls EndStep. An event takes 24 bytes,
  // so the record of a step takes at most 3 GiB.
  static constexpr size_t kEventsATile = 256, kMoreEvents = 4096, kMostEvents = size_t{1} << 27;
  size_t MostEvents() const {
    return std::min(kEventsATile * tiles_.size() + kMoreEvents, kMostEvents);
  }
  bool CanPlan() const {
    return options_.has_store || (frames_bytes_ <= options_.pinned_bytes && !rests_on_device_);
  }
  absl::Status NeedsStore() const;
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
  bool rests_on_device_ = false;  // whether one of them does
  plan::StepRecorder recorder_;
  std::shared_ptr<StepEvents> last_events_;  // of the last step
  bool is_too_long_ = false;
  std::map<uint64_t, Known> known_;  // by fingerprint
  uint64_t last_ = 0;                // the last step; 0: none
  uint64_t expected_ = 0;            // the step that runs, as expected; 0: none
  uint64_t requests_ = 0;            // plans requested
  uint64_t plans_made_ = 0;
  // Plans and steps that are no longer used. Their users drop them before the next EndStep, which
  // has them freed.
  std::vector<std::shared_ptr<const void>> left_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_STEP_PLANNER_H_
