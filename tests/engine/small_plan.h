// SPDX-License-Identifier: Apache-2.0
//
// Steps of a few tiles, written by hand, and their plans.

#ifndef SPILLWAY_TESTS_ENGINE_SMALL_PLAN_H_
#define SPILLWAY_TESTS_ENGINE_SMALL_PLAN_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/engine/following/plan_follower.h"
#include "src/plan/make_plan.h"

namespace spillway::engine {

struct SmallLease {
  plan::TileIndex tile = 0;
  Access access = Access::kRead;
};

// Returns a step whose tiles have bytes on NVMe and are leased in `tier` one after the other.
inline plan::Trace LeasesInTurn(int num_tiles, uint64_t tile_bytes, Tier tier,
                                const std::vector<SmallLease>& leases) {
  plan::TraceRecorder recorder;
  for (int i = 0; i < num_tiles; ++i) recorder.AddTile({.size_bytes = tile_bytes, .stored = true});
  recorder.Begin(0);
  for (const auto& [tile, access] : leases) {
    recorder.Acquire(tile, tier, access, 0, 0);
    recorder.Release(tile, tier, access, 0);
  }
  return recorder.End();
}

inline StepPlan PlanOf(plan::Trace trace, const plan::PlanOptions& options) {
  StepPlan step{.trace = std::move(trace)};
  auto made = plan::MakePlan(step.trace, options);
  EXPECT_TRUE(made.ok()) << made.status();
  if (made.ok()) step.plan = *std::move(made);
  return step;
}

inline std::shared_ptr<PlanFollower> FollowerOf(plan::Trace trace,
                                                const plan::PlanOptions& options) {
  return std::make_shared<PlanFollower>(PlanOf(std::move(trace), options));
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_SMALL_PLAN_H_
