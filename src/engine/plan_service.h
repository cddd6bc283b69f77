// SPDX-License-Identifier: Apache-2.0
//
// Makes plans beside the run, one at a time, on a thread of its own at low priority. Whoever asks
// for a plan goes on without it and looks again later.

#ifndef SPILLWAY_ENGINE_PLAN_SERVICE_H_
#define SPILLWAY_ENGINE_PLAN_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "src/base/mutex.h"
#include "src/engine/plan_follower.h"
#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// Thread-safe. The destructor stops what is being made.
class PlanService {
 public:
  struct Made {
    uint64_t request = 0;  // as it was asked for
    absl::StatusOr<std::shared_ptr<const StepPlan>> plan;
    std::optional<plan::SecondsBound> bound;  // with a plan
  };

  explicit PlanService(const plan::PlanOptions& options);
  ~PlanService();
  PlanService(const PlanService&) = delete;
  PlanService& operator=(const PlanService&) = delete;

  // Begins to make the plan of a step; the caller chooses the request's number. Where no thread is
  // to be had, it is made at once. REQUIRES: not busy.
  void Make(uint64_t request, plan::Trace trace);
  // A plan is being made, or has been made and not been taken.
  bool is_busy() const;
  // The plan that has been made, once. An error is MakePlan's.
  std::optional<Made> Take();
  // Returns when no plan is being made.
  void Wait();

 private:
  Made MakeNow(uint64_t request, plan::Trace trace) const;
  void Run();

  plan::PlanOptions options_;
  std::atomic<bool> stops_ = false;
  mutable base::Mutex mu_;
  std::optional<plan::Trace> asked_ ABSL_GUARDED_BY(mu_);
  uint64_t request_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_making_ ABSL_GUARDED_BY(mu_) = false;  // or is asked to
  std::optional<Made> made_ ABSL_GUARDED_BY(mu_);
  base::CondVar changed_;
  std::thread thread_;  // begun with the first plan
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_SERVICE_H_
