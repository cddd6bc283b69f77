// SPDX-License-Identifier: Apache-2.0
//
// The pager while it follows a plan, driven step by step.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "src/engine/pager/pager.h"
#include "tests/engine/pager_options.h"
#include "tests/engine/small_plan.h"
#include "tests/plan/policies.h"

namespace spillway::engine {
namespace {

const int stream_of_work = 0;
constexpr StreamId kSomeStream = &stream_of_work;

constexpr uint64_t kTileBytes = kFrameAlignment;

// Returns a plan that leases two tiles on the device in this order. The device has room for one,
// and pinned memory holds both.
std::shared_ptr<PlanFollower> TilesOneByOne(const std::vector<SmallLease>& order) {
  return FollowerOf(LeasesInTurn(2, kTileBytes, Tier::kDevice, order),
                    {.device_bytes = kTileBytes, .pinned_bytes = 4 * kTileBytes});
}

PagerOptions OneDeviceFrame() { return WithStore(kTileBytes, 4 * kTileBytes); }

// A caller whose stream waits for a copy already has its lease. If the copy fails, the error must
// be reported, because the bytes never came.
TEST(PagerPlan, AFailedCopyBehindALeaseOnAStreamIsTold) {
  Pager pager(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) pager.AddTile(kTileBytes, Role::kParameter, false, true);
  pager.plan().Follow(TilesOneByOne({{0}, {1}}));

  bool granted = false, copying = false;
  pager.Acquire(/*ticket=*/1, /*tile=*/0, Tier::kDevice, Access::kRead, /*stream=*/kSomeStream);
  for (int round = 0; round < 10 && !granted; ++round) {
    for (const Action& action : pager.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant && action.after_copy;
      copying |= action.Is(Transfer::kCopyIn) && action.tile == 0;
      if (action.Is(Transfer::kRead)) pager.TransferDone(action.tile, {});
    }
  }
  ASSERT_TRUE(granted && copying);
  pager.TransferDone(0, absl::InternalError("the copy failed"));
  EXPECT_TRUE(absl::IsInternal(pager.TakeWriteError()));
  EXPECT_EQ(pager.pages().stats().plan.deviations, 1u);
}

// The plan drops the tile after its last release. An earlier lease may outlast that release,
// because its stream is behind. The follower waits for the stream and does not abandon the plan.
TEST(PagerPlan, ADropWaitsForAnEarlierLeaseWhoseStreamIsBehind) {
  Pager pager(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) pager.AddTile(kTileBytes, Role::kParameter, false, true);
  pager.plan().Follow(TilesOneByOne({{0}, {0}, {1}}));
  Ticket granted = kNoTicket;
  const auto run = [&] {
    for (int round = 0; round < 20; ++round) {
      for (const Action& action : pager.TakeActions()) {
        if (action.kind == Action::Kind::kGrant) granted = action.ticket;
        if (action.Is(Transfer::kRead) || action.Is(Transfer::kCopyIn))
          pager.TransferDone(action.tile, {});
      }
    }
  };
  const auto acquire = [&](Ticket ticket, TileIndex tile) {
    pager.Acquire(ticket, tile, Tier::kDevice, Access::kRead, /*stream=*/nullptr);
    run();
  };

  acquire(1, 0);
  ASSERT_EQ(granted, 1u);
  pager.BeginDrain(0, Tier::kDevice, Access::kRead, kSomeStream);
  acquire(2, 0);
  ASSERT_EQ(granted, 2u);
  (void)pager.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/false);
  acquire(3, 1);
  EXPECT_EQ(granted, 2u) << "the stream still reads tile 0 in the only frame";
  EXPECT_EQ(pager.pages().stats().plan.deviations, 0u);

  (void)pager.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/true);
  run();
  EXPECT_EQ(granted, 3u);
  EXPECT_EQ(pager.pages().stats().plan.deviations, 0u);
}

// A tile outside the plan has the frame of tile 0. Tile 0 is therefore pulled into the frame that
// the plan has for tile 1. When tile 0's stream ends its use, tile 0 begins to leave that frame.
// This needs no event other than that one.
TEST(PagerPlan, WhatMakesWayBeginsToLeaveAtOnce) {
  constexpr TileIndex kFirst = 0, kSecond = 1, kOther = 2;
  plan::TraceRecorder recorder;
  PagerOptions options = OneDeviceFrame();
  options.device_bytes = 2 * kTileBytes;
  Pager pager(options);
  for (const uint64_t frames : {1, 1, 1, 9}) {  // not all fit into pinned memory
    pager.AddTile(frames * kTileBytes, Role::kParameter, false, true);
    recorder.AddTile({.size_bytes = frames * kTileBytes, .stored = true});
  }
  recorder.Begin(0);
  for (const TileIndex tile : {kFirst, kSecond})
    recorder.Acquire(tile, Tier::kDevice, Access::kRead, 0, 0);
  for (const TileIndex tile : {kFirst, kSecond})
    recorder.Release(tile, Tier::kDevice, Access::kRead, 0);
  recorder.Acquire(kFirst, Tier::kDevice, Access::kReadWrite, 0, 0);
  recorder.Release(kFirst, Tier::kDevice, Access::kReadWrite, 0);
  pager.plan().Follow(
      FollowerOf(recorder.End(), {.device_bytes = 2 * kTileBytes,
                                  .pinned_bytes = 4 * kTileBytes,
                                  .choose_retained = FunctionOf(plan::Policy::kNone)}));

  Ticket granted = kNoTicket;
  bool second_moves = false;
  std::vector<TileIndex> moving;
  const auto take = [&] {
    const std::vector<Action> actions = pager.TakeActions();
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::kGrant) {
        granted = action.ticket;
      } else if (action.kind != Action::Kind::kForget) {
        moving.push_back(action.tile);
      }
    }
    return actions.size();
  };
  const auto run = [&] {
    for (int round = 0; round < 40; ++round) {
      take();
      const auto ends = std::find_if(moving.begin(), moving.end(), [&](TileIndex tile) {
        return second_moves || tile != kSecond;
      });
      if (ends == moving.end()) continue;
      const TileIndex tile = *ends;
      moving.erase(ends);
      pager.TransferDone(tile, {});
    }
  };
  pager.Acquire(1, kOther, Tier::kDevice, Access::kRead, kNoStream);
  run();
  pager.Acquire(2, kFirst, Tier::kDevice, Access::kRead, kSomeStream);
  run();
  ASSERT_EQ(granted, 2u);
  (void)pager.EndLease(kOther, Tier::kDevice, Access::kRead, /*drained=*/false);
  run();
  pager.BeginDrain(kFirst, Tier::kDevice, Access::kRead, kSomeStream);
  run();
  second_moves = true;
  run();
  pager.Acquire(3, kFirst, Tier::kDevice, Access::kReadWrite, kNoStream);
  run();
  ASSERT_EQ(granted, 2u);
  (void)pager.EndLease(kFirst, Tier::kDevice, Access::kRead, /*drained=*/true);
  EXPECT_GT(take(), 0u) << "nobody calls again where nothing moves";
  run();
  EXPECT_EQ(granted, 3u);
}

TEST(PagerPlan, ANewTileThatRestsInMemoryEndsAPlan) {
  PagerOptions options = WithStore(kTileBytes, 4 * kTileBytes);
  options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kNvme;
  options.placement[static_cast<size_t>(Role::kGradient)] = Tier::kPinned;
  Pager pager(options);
  for (int i = 0; i < 2; ++i) pager.AddTile(kTileBytes, Role::kParameter, false, true);
  pager.plan().Follow(FollowerOf(LeasesInTurn(2, kTileBytes, Tier::kPinned, {{0}, {1}}),
                                 {.device_bytes = kTileBytes, .pinned_bytes = 4 * kTileBytes}));
  pager.AddTile(kTileBytes, Role::kMoment, false, false);
  EXPECT_TRUE(pager.plan().is_followed());
  pager.AddTile(kTileBytes, Role::kGradient, false, false);
  EXPECT_FALSE(pager.plan().is_followed());
  EXPECT_EQ(pager.pages().stats().plan.deviations, 0u);
}

// When a plan begins, many tiles may lie where it has none. Looking at all of them at once would
// take long, and callers that lease meanwhile would wait.
TEST(PagerPlan, ATileThatMustLeaveWaitsItsTurn) {
  constexpr TileIndex kTiles = 1000;
  constexpr uint64_t kPinned = (kTiles + 2) * kTileBytes;
  Pager pager(WithStore(0, kPinned));
  for (TileIndex tile = 0; tile < 2 * kTiles; ++tile)
    pager.AddTile(kTileBytes, Role::kParameter, false, true);
  const auto run = [&] {
    for (const Action& action : pager.TakeActions()) {
      if (action.Is(Transfer::kRead)) pager.TransferDone(action.tile, {});
    }
  };
  const auto lease = [&](TileIndex tile) {
    pager.Acquire(/*ticket=*/1, tile, Tier::kPinned, Access::kRead, kNoStream);
    run();
    run();
    pager.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/false);
    run();
  };
  const auto num_in_memory = [&] {
    TileIndex num = 0;
    for (TileIndex tile = 0; tile < kTiles; ++tile)
      num += pager.pages()[tile].copy(Tier::kPinned).has_frame();
    return num;
  };
  for (TileIndex tile = 0; tile < kTiles; ++tile) lease(tile);
  ASSERT_EQ(num_in_memory(), kTiles);
  // A step that uses none of them.
  plan::TraceRecorder recorder;
  for (TileIndex tile = 0; tile < 2 * kTiles; ++tile)
    recorder.AddTile({.size_bytes = kTileBytes, .stored = true});
  recorder.Begin(0);
  recorder.Acquire(kTiles, Tier::kPinned, Access::kRead, 0, 0);
  recorder.Release(kTiles, Tier::kPinned, Access::kRead, 0);
  pager.plan().Follow(FollowerOf(recorder.End(), {.pinned_bytes = kPinned}));
  TileIndex before = kTiles;
  for (int pumps = 0; before > 0; ++pumps) {
    ASSERT_LT(pumps, 100);
    run();
    const TileIndex now = num_in_memory();
    EXPECT_LE(before - now, 128u) << "in one run of the pump";
    EXPECT_LT(now, before) << "each run continues";
    before = now;
  }
}

TEST(PagerPlan, ATileHasBytesFromItsFirstWriterToItsDiscard) {
  Pager pager(OneDeviceFrame());
  pager.AddTile(kTileBytes, Role::kGradient, /*transient=*/true, /*stored=*/false);
  const auto write = [&] {
    pager.Acquire(1, 0, Tier::kPinned, Access::kDiscard, kNoStream);
    (void)pager.TakeActions();
    (void)pager.EndLease(0, Tier::kPinned, Access::kDiscard, /*drained=*/false);
    (void)pager.TakeActions();
  };
  for (int round = 0; round < 3; ++round) {
    write();
    EXPECT_TRUE(pager.pages().Now().with_bytes[0]);
    ASSERT_TRUE(pager.Discard(0).ok());
    EXPECT_FALSE(pager.pages().Now().with_bytes[0]);
  }
}

}  // namespace
}  // namespace spillway::engine
