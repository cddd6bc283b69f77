// SPDX-License-Identifier: Apache-2.0
//
// Compares the bounds with the true optimum of small steps, which is found by trying everything.

#include "src/plan/bounds.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "src/plan/make_plan.h"
#include "tests/exhaustive.h"
#include "tests/plan/best_bytes.h"
#include "tests/plan/bound_seconds.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::plan {
namespace {

TEST(Bounds, LieBelowTheOptimumAndPlansNearIt) {
  const unsigned rounds = IsExhaustive() ? 3'000 : 300;
  int compared = 0, plan_near = 0, plan_best = 0, bound_near = 0;
  double optimum = 0, planned = 0, bounded = 0;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + rounds; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937 random(seed);
    RandomTraceOptions shape;
    shape.tiles = 3 + static_cast<int>(random() % 3);
    shape.leases = 6 + static_cast<int>(random() % 14);
    shape.held = 1 + static_cast<int>(random() % 2);
    shape.max_tile_units = 1 + random() % 2;
    shape.pinned_only = true;
    const Trace trace = RandomTrace(shape, random);
    PlanOptions options;
    options.frame_alignment = 1;
    options.pinned_bytes = 2 + random() % 4;
    options.has_lookahead = false;
    const uint64_t best = BestBytes(trace, options.pinned_bytes).Find();
    const auto plan = MakePlan(trace, options);
    if (best == BestBytes::kNoWay) {
      EXPECT_FALSE(plan.ok());
      continue;
    }
    if (!plan.ok()) continue;  // a plan's frames are contiguous, the optimum's need not be
    const BytesBound bound = BoundBytes(trace, options);
    ASSERT_LE(bound.nvme, best);
    ASSERT_LE(best, plan->bytes.nvme());
    ++compared;
    const auto near = [](uint64_t a, uint64_t b) {
      return static_cast<double>(a) <= 1.05 * static_cast<double>(b);
    };
    plan_best += plan->bytes.nvme() == best ? 1 : 0;
    plan_near += near(plan->bytes.nvme(), best) ? 1 : 0;
    bound_near += near(best, bound.nvme) ? 1 : 0;
    optimum += static_cast<double>(best);
    planned += static_cast<double>(plan->bytes.nvme());
    bounded += static_cast<double>(bound.nvme);
  }
  std::printf(
      "%d steps: plan is the optimum in %d, within 1.05 of it in %d; the bound within 1.05 in %d; "
      "over all, plan %.3f and bound %.3f of the optimum\n",
      compared, plan_best, plan_near, bound_near, planned / optimum, bounded / optimum);
  EXPECT_GT(compared, static_cast<int>(rounds) / 2);
  EXPECT_GT(plan_near, compared * 8 / 10);
  EXPECT_LT(planned, 1.1 * optimum);
  EXPECT_GT(bounded, 0.7 * optimum);
}

TEST(Bounds, ACyclicScanMustReadWhatDoesNotFit) {
  TraceRecorder recorder;
  for (int i = 0; i < 10; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (TileIndex tile = 0; tile < 10; ++tile) {
    recorder.Acquire(tile, Tier::kPinned, Access::kRead, 0, 0);
    recorder.Release(tile, Tier::kPinned, Access::kRead, 0);
  }
  const Trace trace = recorder.End();
  PlanOptions options;
  options.pinned_bytes = 400;
  // Three of the four frames retain tiles, and the other tiles pass through the fourth: 7 of 10
  // tiles are read again.
  const BytesBound bound = BoundBytes(trace, options);
  EXPECT_LE(bound.nvme, 700u);
  EXPECT_GE(bound.nvme, 600u);
  EXPECT_EQ(bound.nvme_written, 0u);
  EXPECT_EQ(bound.device, 0u);
}

TEST(Bounds, SecondsCountWhatAWindowMustReadBeyondMemory) {
  TraceRecorder recorder;
  for (int i = 0; i < 10; ++i) recorder.AddTile({.size_bytes = 1000, .stored = true});
  recorder.Begin(0);
  double now = 10;  // one long computation, then a scan without computing
  for (TileIndex tile = 0; tile < 10; ++tile) {
    recorder.Acquire(tile, Tier::kPinned, Access::kRead, now, now);
    recorder.Release(tile, Tier::kPinned, Access::kRead, now);
  }
  const Trace trace = recorder.End();
  PlanOptions options;
  options.pinned_bytes = 4000;
  Rates rates;
  rates.link = {1000, 1000, 1000, 1000};
  rates.nvme = rates.checksum = 1000;
  const BytesBound bound = BoundBytes(trace, options);
  // The bound is the 10 s of computing plus the part of the scan's 10 s for bytes that memory could
  // not have held at its start.
  EXPECT_GE(BoundSeconds(trace, options, bound, rates), 15.0);
  EXPECT_LE(BoundSeconds(trace, options, bound, rates), 16.0);
}

// Gradients are added to zeros, and discarded at the step's end: nothing is ever read.
TEST(Bounds, SecondsReadNothingIntoTilesThatHaveNoBytes) {
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    TraceRecorder recorder;
    for (int i = 0; i < 10; ++i) recorder.AddTile({.size_bytes = 1000, .transient = true});
    recorder.Begin(0);
    for (TileIndex tile = 0; tile < 10; ++tile) {
      recorder.Acquire(tile, tier, Access::kReadWrite, 0, 0);
      recorder.Release(tile, tier, Access::kReadWrite, 0);
    }
    for (TileIndex tile = 0; tile < 10; ++tile) recorder.Discard(tile, 0);
    const Trace trace = recorder.End();
    PlanOptions options;
    options.device_bytes = options.pinned_bytes = 4000;
    Rates rates;
    rates.link = {1000, 1e9, 1000, 1e9};
    rates.nvme = rates.checksum = 1e9;
    const BytesBound bound = BoundBytes(trace, options);
    EXPECT_EQ(bound.nvme_read, 0u);
    EXPECT_LT(BoundSeconds(trace, options, bound, rates), 0.001);
  }
}

// One second of computing precedes each of ten leases. Memory holds four of the ten tiles, and
// 7,000 bytes are read.
TEST(SecondsBound, ComputingIsGivenByPartAndTransfersOverlapIt) {
  TraceRecorder recorder;
  for (int i = 0; i < 10; ++i) recorder.AddTile({.size_bytes = 1000, .stored = true});
  recorder.Begin(0);
  for (TileIndex tile = 0; tile < 10; ++tile) {
    recorder.Acquire(tile, Tier::kPinned, Access::kRead, tile + 1, tile + 1);
    recorder.Release(tile, Tier::kPinned, Access::kRead, tile + 1);
  }
  const Trace trace = recorder.End();
  PlanOptions options;
  options.pinned_bytes = 4000;
  const SecondsBound bound(trace, options, {.nvme_read = 7000, .nvme = 7000});
  std::vector<double> computing = ComputingOf(trace);
  EXPECT_EQ(std::accumulate(computing.begin(), computing.end(), 0.0), 10.0);

  Rates rates;
  rates.link = {1000, 1000, 1000, 1000};
  rates.nvme = rates.checksum = 2000;
  EXPECT_EQ(bound.Transfers(rates), 7.0);
  EXPECT_EQ(bound.Seconds(computing, rates), 10.0);  // 7 s of reading overlap 10 s of computing
  rates.checksum = 500;
  EXPECT_EQ(bound.Transfers(rates), 14.0);
  EXPECT_EQ(bound.Seconds(computing, rates), 14.0);

  // All computing is in the first half. The second half must read 5,000 bytes, of which 4,000 may
  // be in memory at its start.
  rates.checksum = 2000;
  for (size_t part = 0; part < computing.size(); ++part)
    computing[part] = part < computing.size() / 2 ? 1.0 : 0.0;
  EXPECT_EQ(bound.Seconds(computing, rates), 11.0);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  rates.link.fill(kInfinite);
  rates.nvme = rates.checksum = kInfinite;
  EXPECT_EQ(bound.Seconds(computing, rates), 10.0);
}

}  // namespace
}  // namespace spillway::plan
