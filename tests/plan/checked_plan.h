// SPDX-License-Identifier: Apache-2.0
//
// Plans that the simulation carries out and checks, and that are compared with the bounds, which no
// plan may undercut.

#ifndef SPILLWAY_TESTS_PLAN_CHECKED_PLAN_H_
#define SPILLWAY_TESTS_PLAN_CHECKED_PLAN_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "src/plan/bounds.h"
#include "src/plan/make_plan.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/policies.h"
#include "tests/plan/simulate.h"

namespace spillway::plan {

// Returns options for tiles of any size, without lookahead.
inline PlanOptions Budgets(uint64_t device, uint64_t pinned, Policy policy = Policy::kPlanned) {
  PlanOptions options;
  options.frame_alignment = 1;
  options.device_bytes = device;
  options.pinned_bytes = pinned;
  options.has_lookahead = false;
  options.choose_retained = FunctionOf(policy);
  return options;
}

inline void ExpectCarriedOut(const Trace& trace, const PlanOptions& options, const Plan& plan) {
  const auto step = Simulate(trace, plan);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->bytes, plan.bytes);
  const BytesBound bound = BoundBytes(trace, options);
  EXPECT_LE(bound.nvme, plan.bytes.nvme());
  EXPECT_LE(bound.nvme_read, plan.bytes[Transfer::kRead]);
  EXPECT_LE(bound.nvme_written, plan.bytes[Transfer::kWrite]);
  EXPECT_LE(bound.device, plan.bytes.device());
  EXPECT_LE(BoundSeconds(trace, options, bound, Rates()), step->seconds * (1 + 1e-9));
}

// REQUIRES: the leases fit.
inline Plan Planned(const Trace& trace, const PlanOptions& options) {
  auto plan = MakePlan(trace, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  ExpectCarriedOut(trace, options, *plan);
  return *std::move(plan);
}

// Plans steps, of which some do not fit.
class RandomPlans {
 public:
  // Returns nullopt if the step does not fit.
  std::optional<Plan> Make(const Trace& trace, const PlanOptions& options) {
    auto plan = MakePlan(trace, options);
    ++(plan.ok() ? planned_ : refused_);
    if (plan.ok()) {
      ExpectCarriedOut(trace, options, *plan);
      return *std::move(plan);
    }
    EXPECT_TRUE(absl::IsResourceExhausted(plan.status())) << plan.status();
    return std::nullopt;
  }
  void ExpectFewRefused() const {
    std::printf("%d planned, %d refused\n", planned_, refused_);
    EXPECT_GT(planned_, 5 * refused_);
  }

 private:
  int planned_ = 0, refused_ = 0;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_CHECKED_PLAN_H_
