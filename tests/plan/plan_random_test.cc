// SPDX-License-Identifier: Apache-2.0
//
// Plans of random steps, under random budgets and every policy, carried out by the simulation that
// checks them; and beside the bounds, which no plan may beat.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/simulate.h"
#include "src/plan/uses.h"
#include "tests/exhaustive.h"
#include "tests/plan/random_trace.h"

namespace spillway::plan {
namespace {

unsigned Seeds() { return IsExhaustive() ? 20'000 : 1'000; }

TEST(RandomPlans, AreCarriedOutWithinBudgetsWithoutLosingAByte) {
  int planned = 0, refused = 0;
  for (unsigned seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    RandomTraceOptions shape;
    shape.tiles = 2 + static_cast<int>(random() % 20);
    shape.leases = 1 + static_cast<int>(random() % 80);
    shape.held = 1 + static_cast<int>(random() % 4);
    shape.max_tile_units = 1 + random() % 5;
    const Trace trace = RandomTrace(shape, random);
    ASSERT_TRUE(Validate(trace).ok()) << Validate(trace);
    PlanOptions options;
    options.frame_alignment = 1;
    options.device_bytes = 4 + random() % 40;
    options.pinned_bytes = 8 + random() % 60;
    options.policy = static_cast<Policy>(random() % kNumPolicies);
    options.has_store = random() % 8 != 0;
    const auto plan = MakePlan(trace, options);
    if (!plan.ok()) {
      ASSERT_TRUE(absl::IsResourceExhausted(plan.status())) << plan.status();
      ++refused;
      continue;
    }
    ++planned;
    const auto step = Simulate(trace, *plan, Rates());
    ASSERT_TRUE(step.ok()) << step.status() << " policy " << Name(options.policy);
    ASSERT_EQ(step->bytes, plan->bytes);
    const BytesBound bound = BoundBytes(trace, options);
    ASSERT_LE(bound.nvme, plan->bytes.nvme());
    ASSERT_LE(bound.nvme_read, plan->bytes[Link::kRead]);
    ASSERT_LE(bound.nvme_written, plan->bytes[Link::kWrite]);
    ASSERT_LE(bound.device, plan->bytes.device());
    ASSERT_LE(BoundSeconds(trace, options, bound, Rates()), step->seconds * (1 + 1e-9));
  }
  std::printf("%d planned, %d refused\n", planned, refused);
  EXPECT_GT(planned, 5 * refused);
}

}  // namespace
}  // namespace spillway::plan
