// SPDX-License-Identifier: Apache-2.0
//
// Tests plans of steps whose tiles must rest in one tier: steps whose bytes are known beforehand
// under every policy, and random steps that are checked by the simulation and the bounds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "src/plan/make_plan.h"
#include "tests/exhaustive.h"
#include "tests/plan/checked_plan.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::plan {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTileBytes = 100;

struct Lease {
  TileIndex tile;
  Tier tier;
  Access access;
};

// Returns a step of tiles of 100 bytes that have bytes on NVMe and are leased one after the other.
Trace Leases(uint32_t tiles, const std::vector<Lease>& leases) {
  TraceRecorder recorder;
  for (uint32_t i = 0; i < tiles; ++i) recorder.AddTile({.size_bytes = kTileBytes, .stored = true});
  recorder.Begin(0);
  for (const Lease& lease : leases) {
    recorder.Acquire(lease.tile, lease.tier, lease.access, 0, 0);
    recorder.Release(lease.tile, lease.tier, lease.access, 0);
  }
  return recorder.End();
}

Trace Scan(uint32_t tiles, Tier tier, Access access) {
  std::vector<Lease> leases;
  for (TileIndex tile = 0; tile < tiles; ++tile) leases.push_back({tile, tier, access});
  return Leases(tiles, leases);
}

// Makes the tiles from `first` up to, not including, `end` rest in a tier. Their frames lie side by
// side from the tier's start.
void Rest(Tier tier, TileIndex first, TileIndex end, Trace* trace) {
  for (TileIndex tile = first; tile < end; ++tile) {
    trace->tiles[tile].rest = tier;
    if (tier != Tier::kNvme)
      trace->tiles[tile].reserved_frame = ReservedFrame{tier, (tile - first) * kTileBytes};
  }
}

bool Touches(const Plan& plan, TileIndex tile, Transfer kind) {
  return std::any_of(plan.ops.begin(), plan.ops.end(),
                     [&](const Op& op) { return op.tile == tile && op.kind == kind; });
}

class Placed : public testing::TestWithParam<Policy> {};

TEST_P(Placed, OnNvmeATileIsReadForEachUseWhateverRoomThereIs) {
  Trace trace = Scan(10, Tier::kPinned, Access::kRead);
  Rest(Tier::kNvme, 0, 10, &trace);
  const Plan plan = Planned(trace, Budgets(0, 1000, GetParam()));
  EXPECT_EQ(plan.bytes[Transfer::kRead], 1000u);
  EXPECT_EQ(plan.bytes[Transfer::kWrite], 0u);
  EXPECT_TRUE(plan.seam.empty());
}

TEST_P(Placed, OnNvmeWhatIsWrittenIsWrittenOnceForEachUse) {
  Trace trace = Scan(4, Tier::kDevice, Access::kReadWrite);
  Rest(Tier::kNvme, 0, 4, &trace);
  const Plan plan = Planned(trace, Budgets(400, 400, GetParam()));
  EXPECT_EQ(plan.bytes[Transfer::kRead], 400u);
  EXPECT_EQ(plan.bytes[Transfer::kCopyIn], 400u);
  EXPECT_EQ(plan.bytes[Transfer::kCopyOut], 400u);
  EXPECT_EQ(plan.bytes[Transfer::kWrite], 400u);
}

// A gradient: the device writes it, the CPU reads it.
TEST_P(Placed, OnNvmeBytesGoThereBetweenTheDevicesUseAndTheCpus) {
  Trace trace =
      Leases(1, {{0, Tier::kDevice, Access::kDiscard}, {0, Tier::kPinned, Access::kRead}});
  EXPECT_EQ(Planned(trace, Budgets(100, 100)).bytes.nvme(), 0u);
  Rest(Tier::kNvme, 0, 1, &trace);
  const Plan plan = Planned(trace, Budgets(100, 100, GetParam()));
  EXPECT_EQ(plan.bytes[Transfer::kCopyOut], 100u);
  EXPECT_EQ(plan.bytes[Transfer::kWrite], 100u);
  EXPECT_EQ(plan.bytes[Transfer::kRead], 100u);
}

TEST_P(Placed, InPinnedMemoryATileNeverSeesNvmeAndLeavesTheDeviceAtOnce) {
  Trace trace = Scan(6, Tier::kDevice, Access::kReadWrite);
  Rest(Tier::kPinned, 0, 4, &trace);
  const Plan plan = Planned(trace, Budgets(600, 500, GetParam()));
  for (TileIndex tile = 0; tile < 4; ++tile) {
    EXPECT_FALSE(Touches(plan, tile, Transfer::kRead)) << tile;
    EXPECT_FALSE(Touches(plan, tile, Transfer::kWrite)) << tile;
    EXPECT_TRUE(Touches(plan, tile, Transfer::kCopyIn)) << tile;
    EXPECT_TRUE(Touches(plan, tile, Transfer::kCopyOut)) << tile;
  }
  for (const Place& place : plan.seam)
    EXPECT_TRUE(place.tile >= 4 || place.tier == Tier::kPinned) << place.tile;
}

TEST(Placement, OtherTilesHaveWhatRoomIsLeft) {
  Trace trace = Scan(10, Tier::kPinned, Access::kRead);
  Rest(Tier::kPinned, 0, 4, &trace);
  // The four tiles at rest stay. One of the other six stays, too, beside the frame through which
  // five pass.
  EXPECT_EQ(Planned(trace, Budgets(0, 600)).bytes.nvme(), 500u);
  // The frames now begin at 150. There is room for at most one tile below them and one above.
  for (TileIndex tile = 0; tile < 4; ++tile)
    trace.tiles[tile].reserved_frame->offset = 150 + tile * 100;
  EXPECT_EQ(Planned(trace, Budgets(0, 600)).bytes.nvme(), 600u);
  EXPECT_EQ(Planned(trace, Budgets(0, 650)).bytes.nvme(), 500u);
}

// A weight: the CPU writes it, the device reads it twice.
TEST_P(Placed, OnTheDeviceWhatTheCpuWroteComesAtOnceAndStays) {
  Trace trace = Leases(2, {{0, Tier::kPinned, Access::kDiscard},
                           {1, Tier::kPinned, Access::kDiscard},
                           {0, Tier::kDevice, Access::kRead},
                           {1, Tier::kDevice, Access::kRead},
                           {0, Tier::kDevice, Access::kRead},
                           {1, Tier::kDevice, Access::kRead}});
  Rest(Tier::kDevice, 0, 2, &trace);
  const Plan plan = Planned(trace, Budgets(200, 100, GetParam()));
  EXPECT_EQ(plan.bytes[Transfer::kCopyIn], 200u);
  EXPECT_EQ(plan.bytes.total(), 200u);
  EXPECT_EQ(plan.seam.size(), 2u);
  for (const Place& place : plan.seam) EXPECT_EQ(place.tier, Tier::kDevice);
}

TEST_P(Placed, OnTheDeviceWhatTheCpuReadsIsCopiedOutForItAlone) {
  Trace trace = Leases(1, {{0, Tier::kDevice, Access::kReadWrite},
                           {0, Tier::kPinned, Access::kRead},
                           {0, Tier::kPinned, Access::kRead}});
  Rest(Tier::kDevice, 0, 1, &trace);
  const Plan plan = Planned(trace, Budgets(100, 300, GetParam()));
  EXPECT_EQ(plan.bytes[Transfer::kCopyOut], 200u);
  EXPECT_EQ(plan.bytes.total(), 200u);
}

TEST(Placement, WhatDoesNotFitIsNamed) {
  Trace trace = Scan(4, Tier::kPinned, Access::kRead);
  Rest(Tier::kPinned, 0, 3, &trace);
  EXPECT_TRUE(MakePlan(trace, Budgets(0, 400)).ok());
  const absl::Status full = MakePlan(trace, Budgets(0, 350)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("needs at that time is 50 B"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("reserved frames take up to 400 B"));
  trace.tiles[2].reserved_frame->offset = 150;
  EXPECT_TRUE(absl::IsInvalidArgument(MakePlan(trace, Budgets(0, 400)).status()));
}

// Without a store, all tiles stay in pinned memory. The reserved frame leaves 50 bytes on one side.
TEST(Placement, WithoutAStoreWhatDoesNotFitBesideAReservedFrameIsNamed) {
  Trace trace = Scan(3, Tier::kPinned, Access::kRead);
  Rest(Tier::kPinned, 0, 1, &trace);
  trace.tiles[0].reserved_frame->offset = 150;
  PlanOptions options = Budgets(0, 300);
  options.has_store = false;
  const absl::Status full = MakePlan(trace, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("needs at that time is 50 B"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("raise it by at least 50 B"));
}

TEST(Placement, RandomStepsKeepToItAndNoBoundIsBroken) {
  RandomPlans plans;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 1000 / SampleShare(); ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937 random(seed);
    RandomTraceOptions shape;
    shape.tiles = 2 + static_cast<int>(random() % 16);
    shape.leases = 1 + static_cast<int>(random() % 60);
    shape.held = 1 + static_cast<int>(random() % 3);
    Trace trace = RandomTrace(shape, random);
    PlanOptions options;
    options.frame_alignment = 1;
    options.choose_retained = FunctionOf(static_cast<Policy>(random() % kNumPolicies));
    uint64_t reserved_bytes[2] = {};
    for (TraceTile& tile : trace.tiles) {
      const auto tier = static_cast<Tier>(random() % 4);
      if (tier > Tier::kNvme) continue;
      // A tile with a reserved frame in pinned memory need not rest there.
      if (tier != Tier::kPinned || random() % 2 == 0) tile.rest = tier;
      if (tier == Tier::kNvme) continue;
      uint64_t& reserved = reserved_bytes[static_cast<size_t>(tier)];
      reserved += random() % 8 == 0 ? random() % 6 : 0;  // gaps
      tile.reserved_frame = ReservedFrame{tier, reserved};
      reserved += tile.size_bytes;
    }
    options.device_bytes = reserved_bytes[0] + 10 + random() % 30;
    options.pinned_bytes = reserved_bytes[1] + 12 + random() % 40;
    const std::optional<Plan> plan = plans.Make(trace, options);
    if (HasFailure()) return;
    if (!plan) continue;
    for (const Op& op : plan->ops) {
      const TraceTile& tile = trace.tiles[op.tile];
      if (!tile.reserved_frame) continue;
      ASSERT_NE(op.kind, Transfer::kRead) << op.tile;
      ASSERT_NE(op.kind, Transfer::kWrite) << op.tile;
      if (op.tier == tile.reserved_frame->tier) {
        ASSERT_EQ(op.offset, tile.reserved_frame->offset);
      }
    }
    for (const Place& place : plan->seam) {
      const TraceTile& tile = trace.tiles[place.tile];
      ASSERT_TRUE(!tile.rest || *tile.rest == place.tier);
    }
  }
  plans.ExpectFewRefused();
}

INSTANTIATE_TEST_SUITE_P(Policies, Placed,
                         testing::Values(Policy::kPlanned, Policy::kLru, Policy::kFifo,
                                         Policy::kPrefix, Policy::kNone),
                         [](const auto& policy) { return std::string(Name(policy.param)); });

}  // namespace
}  // namespace spillway::plan
