// SPDX-License-Identifier: Apache-2.0
//
// Makes plans beside the run, one at a time, on its own thread at low priority. The caller that
// requests a plan continues without it and looks for it later. Bounds are not computed here: see
// PlanFollower::Bound.

#ifndef SPILLWAY_ENGINE_PLAN_SERVICE_H_
#define SPILLWAY_ENGINE_PLAN_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "src/engine/following/plan_follower.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// Memory, for steps with 3.4 events a tile: making a plan takes up to 0.85 KiB a tile (250 B an
// event), the trace included, and a plan that is made keeps up to 0.34 KiB a tile (100 B an event).
// Both grow with tiles and events, whose number StepPlanner limits, and one plan is made at a time.
//
// Thread-safe. The destructor cancels the plan that is being made and waits for the thread. The
// thread looks for that between the phases of planning, which take up to 0.1 s for 100,000 tiles. A
// caller that ends other work too calls Stop before that work.
class PlanService {
 public:
  using Made = absl::StatusOr<std::shared_ptr<PlanFollower>>;  // positioned at the plan's start

  using TraceMaker = std::function<plan::Trace()>;  // makes the trace of a step

  // Starts the thread, or leaves that to Start.
  explicit PlanService(const plan::PlanOptions& options);
  ~PlanService();
  PlanService(const PlanService&) = delete;
  PlanService& operator=(const PlanService&) = delete;

  // Tries to start the thread if it does not run. Call it where no lock is held: starting a thread
  // may take long. The other functions are short.
  void Start();
  // Cancels the plan that is being made, without waiting for the thread.
  void Stop();
  // Starts to make the plan of a step. `step` makes the step's trace, on the service's thread.
  // ResourceExhausted: the thread could not be started, and nothing is made. REQUIRES: not busy,
  // not stopped.
  absl::Status Make(TraceMaker step);
  // Whether a plan is being made, or is made and was not taken yet.
  bool is_busy() const;
  // Returns the plan that has been made, once; empty if there is none. An error in place of the
  // plan is that of plan::Validate or plan::MakePlan, Unavailable if there was no memory to make
  // it, or Cancelled if it was not whole at Stop.
  std::optional<Made> Take();
  // Waits until no plan is being made. Cancelled if interrupted.
  absl::Status Wait();
  // Frees memory on the service's thread, because freeing a plan of millions of tiles takes long.
  // Without a thread, the memory is held until there is one, or until the service ends.
  void Free(std::shared_ptr<const void> what);

 private:
  Made MakeNow(const TraceMaker& step) const;
  Made Plan(const TraceMaker& step) const;
  void Run();

  plan::PlanOptions options_;
  std::atomic<bool> stops_ = false;
  mutable base::Mutex mu_;
  TraceMaker asked_ ABSL_GUARDED_BY(mu_);        // null if nothing is requested
  bool is_making_ ABSL_GUARDED_BY(mu_) = false;  // or is requested to
  std::optional<Made> made_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const void>> left_ ABSL_GUARDED_BY(mu_);  // to be freed by the thread
  absl::Status started_ ABSL_GUARDED_BY(mu_);  // why the thread does not run, or OK
  base::CondVar changed_;
  base::Mutex start_mu_;  // may be held for long
  std::thread thread_ ABSL_GUARDED_BY(start_mu_);
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_SERVICE_H_
