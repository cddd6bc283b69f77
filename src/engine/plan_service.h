// SPDX-License-Identifier: Apache-2.0
//
// Makes plans beside the run, one at a time, on its own thread at low priority. The caller that
// requests a plan continues without it and looks for it later.

#ifndef SPILLWAY_ENGINE_PLAN_SERVICE_H_
#define SPILLWAY_ENGINE_PLAN_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "src/engine/following/plan_follower.h"
#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// Thread-safe. The destructor cancels the plan that is being made.
class PlanService {
 public:
  struct Made {
    absl::StatusOr<std::shared_ptr<PlanFollower>> plan;  // positioned at the plan's start
    std::shared_ptr<const plan::SecondsBound> bound;     // null if there is no plan
  };

  // Makes the trace of a step. Once `stop` is true, the trace is not used and may be incomplete.
  using TraceMaker = std::function<plan::Trace(const std::atomic<bool>& stop)>;

  explicit PlanService(const plan::PlanOptions& options);
  ~PlanService();
  PlanService(const PlanService&) = delete;
  PlanService& operator=(const PlanService&) = delete;

  // Starts to make the plan of a step. `step` makes the step's trace, on the service's thread. If
  // no thread can be started, the plan is made before Make returns. REQUIRES: not busy.
  void Make(TraceMaker step);
  // Whether a plan is being made, or is made and was not taken yet.
  bool is_busy() const;
  // Returns the plan that has been made, once; empty if there is none. An error in place of the
  // plan is that of plan::Validate or plan::MakePlan.
  std::optional<Made> Take();
  // Waits until no plan is being made. Cancelled if interrupted.
  absl::Status Wait();
  // Frees memory on the service's thread, because freeing a plan of millions of tiles takes long.
  void Free(std::shared_ptr<const void> what);

 private:
  Made MakeNow(const TraceMaker& step) const;
  Made Plan(const TraceMaker& step) const;
  // Starts the thread if it does not run yet. Returns whether it runs.
  bool StartThread();
  void Run();

  plan::PlanOptions options_;
  std::atomic<bool> stops_ = false;
  mutable base::Mutex mu_;
  TraceMaker asked_ ABSL_GUARDED_BY(mu_);        // null if nothing is requested
  bool is_making_ ABSL_GUARDED_BY(mu_) = false;  // or is requested to
  std::optional<Made> made_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const void>> left_ ABSL_GUARDED_BY(mu_);  // to be freed by the thread
  base::CondVar changed_;
  std::thread thread_;  // started by the first Make or Free
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_SERVICE_H_
