// SPDX-License-Identifier: Apache-2.0

#include "src/engine/plan_service.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/check.h"
#include "src/base/errno_status.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/plan/make_plan.h"
#include "src/plan/reserve.h"

namespace spillway::engine {
namespace {

using base::MutexLock;

// Lowers the calling thread's priority, so that the threads that lease and the mover get the cores
// first. They may have a low priority themselves.
constexpr int kNicer = 10;
constexpr int kLeastPriority = 19;
void LowerPriority() {
  const auto thread = static_cast<id_t>(::gettid());
  const int inherited = ::getpriority(PRIO_PROCESS, thread);
  (void)::setpriority(PRIO_PROCESS, thread, std::min(inherited + kNicer, kLeastPriority));
}

}  // namespace

PlanService::PlanService(const plan::PlanOptions& options) : options_(options) {
  options_.stop = &stops_;
  Start();
}

PlanService::~PlanService() {
  Stop();
  MutexLock starting(&start_mu_);
  if (thread_.joinable()) thread_.join();
}

void PlanService::Stop() {
  stops_ = true;
  MutexLock lock(&mu_);
  changed_.NotifyAll();
}

void PlanService::Start() {
  MutexLock starting(&start_mu_);
  if (thread_.joinable()) return;
  absl::Status started;
  try {
    thread_ = std::thread(&PlanService::Run, this);
  } catch (const std::system_error& error) {
    const absl::Status status =
        base::ThreadErrorToStatus(error.code().value(), "the thread that plans steps");
    started = absl::Status(status.code(),
                           absl::StrCat(status.message(), "; the next EndStep tries again"));
  }
  MutexLock lock(&mu_);
  started_ = std::move(started);
}

absl::Status PlanService::Make(TraceMaker step) {
  MutexLock lock(&mu_);
  SPILLWAY_CHECK(!is_making_ && !made_);
  SPILLWAY_RETURN_IF_ERROR(started_);
  asked_ = std::move(step);
  is_making_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool PlanService::is_busy() const {
  MutexLock lock(&mu_);
  return is_making_ || made_.has_value();
}

std::optional<PlanService::Made> PlanService::Take() {
  MutexLock lock(&mu_);
  return std::exchange(made_, std::nullopt);
}

absl::Status PlanService::Wait() {
  MutexLock lock(&mu_);
  bool interrupted = false;
  while (is_making_ && !interrupted) interrupted = base::WaitOrInterrupt(&changed_, &mu_);
  if (is_making_)
    return absl::CancelledError("WaitForPlan was interrupted: the plan is still being made");
  if (interrupted) base::PutBackInterrupt();
  return absl::OkStatus();
}

void PlanService::Free(std::shared_ptr<const void> what) {
  if (what == nullptr) return;
  MutexLock lock(&mu_);
  left_.push_back(std::move(what));
  changed_.NotifyAll();
}

void PlanService::Run() {
  LowerPriority();
  while (true) {
    TraceMaker step;
    std::vector<std::shared_ptr<const void>> left;
    {
      MutexLock lock(&mu_);
      while (!asked_ && left_.empty() && !stops_) changed_.Wait(&mu_);
      if (stops_ && !asked_) return;
      step = std::exchange(asked_, nullptr);
      left.swap(left_);
    }
    left.clear();
    if (step == nullptr) continue;
    Made made = MakeNow(step);
    step = nullptr;
    MutexLock lock(&mu_);
    made_ = std::move(made);
    is_making_ = false;
    changed_.NotifyAll();
  }
}

PlanService::Made PlanService::MakeNow(const TraceMaker& step) const {
  try {
    return Plan(step);
  } catch (const std::bad_alloc&) {
    return absl::UnavailableError(
        "there is not enough memory to plan the step; the next EndStep tries again");
  }
}

PlanService::Made PlanService::Plan(const TraceMaker& step) const {
  plan::Trace trace = step();
  SPILLWAY_RETURN_IF_ERROR(plan::Validate(trace));
  plan::PlanOptions options = options_;
  const plan::Reserve reserve = plan::ReserveFor(trace, options.frame_alignment);
  options.device_reserve_bytes = reserve.device_bytes;
  options.pinned_reserve_bytes = reserve.pinned_bytes;
  absl::StatusOr<plan::Plan> plan = plan::MakePlan(trace, options);
  // If the step's leases or its reserved frames leave no room for the reserve, the plan is made
  // without it. Some leases are slower then.
  if (!plan.ok() && reserve != plan::Reserve{}) plan = plan::MakePlan(trace, options_);
  SPILLWAY_RETURN_IF_ERROR(plan.status());
  plan->options.stop = nullptr;  // the service may end before the plan does
  return std::make_shared<PlanFollower>(StepPlan{std::move(trace), *std::move(plan)});
}

}  // namespace spillway::engine
