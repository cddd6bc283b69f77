// SPDX-License-Identifier: Apache-2.0
//
// Plans of random steps, under random budgets and every policy, carried out by the simulation that
// checks them; and beside the bounds, which no plan may beat.

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/exhaustive.h"
#include "tests/plan/checked_plan.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::plan {
namespace {

uint64_t NumRounds() { return IsExhaustive() ? 20'000 : 1'000 / SampleShare(); }

// What is in memory once a plan is entered; nothing if an operation on the way cannot be done.
std::optional<std::set<std::pair<TileIndex, Tier>>> Entered(const Plan& plan, const Trace& trace,
                                                            std::span<const Place> now) {
  std::set<std::pair<TileIndex, Tier>> copies;
  for (const Place& place : now) copies.emplace(place.tile, place.tier);
  const Entry entry = EnterPlan(plan, trace, now);
  for (const Place& place : entry.leave) copies.erase({place.tile, place.tier});
  for (const Op& op : entry.ops) {
    const bool from_pinned = op.kind == Transfer::kCopyIn;
    if (from_pinned && copies.count({op.tile, Tier::kPinned}) == 0) return std::nullopt;
    const bool done = op.kind == Transfer::kDrop ? copies.erase({op.tile, op.tier}) == 1
                                                 : copies.emplace(op.tile, op.tier).second;
    if (!done) return std::nullopt;
  }
  return copies;
}

TEST(RandomPlans, AreEnteredFromAnyPartOfWhatTheirPeriodBeginsWith) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + NumRounds(); ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937 random(seed);
    RandomTraceOptions shape;
    shape.tiles = 2 + static_cast<int>(random() % 20);
    shape.leases = 1 + static_cast<int>(random() % 80);
    Trace trace = RandomTrace(shape, random);
    PlanOptions options;
    options.frame_alignment = 1;
    options.device_bytes = 4 + random() % 40;
    options.pinned_bytes = 8 + random() % 60;
    for (TraceTile& tile : trace.tiles) {  // of some seeds, homes for part of the tiles
      if (seed % 3 != 0 || random() % 2 == 0) continue;
      tile.home = Home{Tier::kPinned, options.pinned_bytes};
      options.pinned_bytes += tile.size_bytes;
    }
    const auto plan = MakePlan(trace, options);
    if (!plan.ok()) continue;
    std::vector<Place> now;
    std::set<std::pair<TileIndex, Tier>> wanted;
    for (const Place& place : plan->seam) {
      wanted.emplace(place.tile, place.tier);
      if (random() % 2 == 0) now.push_back(place);
    }
    ASSERT_EQ(Entered(*plan, trace, now), wanted);
  }
}

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
    options.policy = static_cast<Policy>(random() % kNumPolicies);
    options.has_store = random() % 8 != 0;
    plans.Make(trace, options);
    if (HasFailure()) return;
  }
  plans.ExpectFewRefused();
}

}  // namespace
}  // namespace spillway::plan
