// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_room.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "src/plan/make_plan.h"
#include "src/plan/reserve.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::engine {
namespace {

// Returns a plan for several threads. Its operations take any frame.
StepPlan PlanWithReserve(uint64_t seed, std::mt19937_64& random) {
  std::mt19937 of_trace(static_cast<uint32_t>(seed));
  plan::Trace trace = plan::RandomTrace({.tiles = 12, .leases = 60, .held = 2}, of_trace);
  for (plan::TraceEvent& event : trace.events) event.thread = static_cast<uint16_t>(event.tile % 2);
  plan::PlanOptions options{
      .device_bytes = 12 + random() % 20, .pinned_bytes = 20 + random() % 30, .frame_alignment = 1};
  const plan::Reserve reserve = plan::ReserveFor(trace, 1);
  options.device_reserve_bytes = reserve.device_bytes;
  options.pinned_reserve_bytes = reserve.pinned_bytes;
  StepPlan step{.trace = std::move(trace)};
  auto made = plan::MakePlan(step.trace, options);
  if (made.ok()) step.plan = *std::move(made);
  return step;
}

// PlanRoom remembers operations that did not fit. This must never change an answer: an instance
// that was queried for every operation at every event answers as an instance that went through the
// same changes and is queried for the first time.
TEST(PlanRoom, AnswersDoNotDependOnEarlierQuestions) {
  const uint64_t first = test::Seed();
  int plans = 0, fits = 0, fits_not = 0;
  for (uint64_t seed = first; seed != first + 30; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const StepPlan step = PlanWithReserve(seed, random);
    const uint64_t num_ops = step.plan.ops.size(), num_events = step.trace.events.size();
    if (num_ops == 0) continue;
    ++plans;
    std::vector<std::function<void(PlanRoom&)>> changes;
    std::vector<bool> begun(4 * num_ops);
    PlanRoom asked(step);
    const auto change = [&](std::function<void(PlanRoom&)> how) {
      how(asked);
      changes.push_back(std::move(how));
    };
    for (uint64_t event = 0; event < 2 * num_events; ++event) {
      change([event](PlanRoom& room) { room.PassTo(event); });
      const uint64_t window = event / num_events * num_ops + random() % num_ops;
      for (uint64_t op = window; op < window + 8; ++op) {
        if (begun[op] || random() % 3 != 0 || !asked.Has(op)) continue;
        begun[op] = true;
        change([op](PlanRoom& room) { room.Begun(op); });
      }
      PlanRoom not_asked(step);
      for (const auto& how : changes) how(not_asked);
      for (uint64_t op = window; op < window + num_ops; ++op) {
        PlanRoom fresh = not_asked;
        const bool has = asked.Has(op);
        ASSERT_EQ(has, fresh.Has(op)) << "event " << event << ", operation " << op;
        ++(has ? fits : fits_not);
      }
      if (event == num_events && seed % 2 == 0) {
        asked.Restart();
        changes.clear();
        std::fill(begun.begin(), begun.end(), false);
      }
    }
  }
  EXPECT_GT(plans, 0);
  EXPECT_GT(fits, 0);
  EXPECT_GT(fits_not, 0);
}

}  // namespace
}  // namespace spillway::engine
