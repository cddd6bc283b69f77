// SPDX-License-Identifier: Apache-2.0
//
// Makes plans beside the run, one at a time, on a thread of its own at low priority. Whoever asks
// for a plan goes on without it and looks again later.

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

// Thread-safe. The destructor stops what is being made.
class PlanService {
 public:
  struct Made {
    uint64_t request = 0;                                // as it was asked for
    absl::StatusOr<std::shared_ptr<PlanFollower>> plan;  // at its begin
    std::shared_ptr<const plan::SecondsBound> bound;     // with a plan
  };

  // Writes a step's trace down. Once `stop` is true, nobody wants it.
  using TraceMaker = std::function<plan::Trace(const std::atomic<bool>& stop)>;

  explicit PlanService(const plan::PlanOptions& options);
  ~PlanService();
  PlanService(const PlanService&) = delete;
  PlanService& operator=(const PlanService&) = delete;

  // Begins to make the plan of a step, whose trace `step` writes down there; the caller chooses the
  // request's number. Where no thread is to be had, it is made at once. REQUIRES: not busy.
  void Make(uint64_t request, TraceMaker step);
  // A plan is being made, or has been made and not been taken.
  bool is_busy() const;
  // The plan that has been made, once. An error is MakePlan's.
  std::optional<Made> Take();
  // Returns when no plan is being made. Cancelled if interrupted.
  absl::Status Wait();
  // Gives memory back there: of a plan of millions of tiles that takes long.
  void Free(std::shared_ptr<const void> what);

 private:
  Made MakeNow(uint64_t request, const TraceMaker& step) const;
  void Run();

  plan::PlanOptions options_;
  std::atomic<bool> stops_ = false;
  mutable base::Mutex mu_;
  TraceMaker asked_ ABSL_GUARDED_BY(mu_);  // null: nothing is
  uint64_t request_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_making_ ABSL_GUARDED_BY(mu_) = false;  // or is asked to
  std::optional<Made> made_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<const void>> left_ ABSL_GUARDED_BY(mu_);  // to be freed
  base::CondVar changed_;
  std::thread thread_;  // begun with the first plan
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_SERVICE_H_
