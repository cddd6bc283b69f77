// SPDX-License-Identifier: Apache-2.0
//
// Tests plans of random steps, under random budgets and every policy. The simulation carries them
// out and checks them. They are compared with the bounds, which no plan may undercut.

#include <gtest/gtest.h>

#include <random>

#include "src/plan/make_plan.h"
#include "tests/exhaustive.h"
#include "tests/plan/checked_plan.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::plan {
namespace {

uint64_t NumRounds() { return IsExhaustive() ? 20'000 : 1'000 / SampleShare(); }

TEST(RandomPlans, AreCarriedOutWithinBudgetsWithoutLosingAByte) {
  RandomPlans plans;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + NumRounds(); ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
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
    options.choose_retained = FunctionOf(static_cast<Policy>(random() % kNumPolicies));
    options.has_store = random() % 8 != 0;
    plans.Make(trace, options);
    if (HasFailure()) return;
  }
  plans.ExpectFewRefused();
}

}  // namespace
}  // namespace spillway::plan
