// SPDX-License-Identifier: Apache-2.0
//
// The state machine while it follows a plan, driven step by step.

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

const int stream_of_work = 0;
constexpr StreamId kSomeStream = &stream_of_work;

constexpr uint64_t kTileBytes = kFrameAlignment;

// Leases two tiles on the device in this order; it has room for one, and pinned memory keeps both.
std::shared_ptr<const StepPlan> TilesOneByOne(std::initializer_list<plan::TileIndex> order) {
  plan::TraceRecorder recorder;
  for (int i = 0; i < 2; ++i) recorder.AddTile({.size_bytes = kTileBytes, .stored = true});
  recorder.Begin(0);
  for (const plan::TileIndex tile : order) {
    recorder.Acquire(tile, Tier::kDevice, Access::kRead, 0, 0);
    recorder.Release(tile, Tier::kDevice, Access::kRead, 0);
  }
  StepPlan step{.trace = recorder.End()};
  auto made =
      plan::MakePlan(step.trace, {.device_bytes = kTileBytes, .pinned_bytes = 4 * kTileBytes});
  EXPECT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  return std::make_shared<const StepPlan>(std::move(step));
}

ResidencyOptions OneDeviceFrame() {
  ResidencyOptions options;
  options.device_bytes = kTileBytes;
  options.pinned_bytes = 4 * kTileBytes;
  options.has_store = true;
  options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
  return options;
}

// A caller whose stream waits for a copy has its lease already: if the copy fails, someone must be
// told that the bytes never came.
TEST(ResidencyPlan, AFailedCopyBehindALeaseOnAStreamIsTold) {
  Residency residency(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) residency.AddTile(kTileBytes, Role::kParameter, false, true);
  residency.FollowPlan(TilesOneByOne({0, 1}));

  bool granted = false, copying = false;
  residency.Acquire(/*ticket=*/1, /*tile=*/0, Tier::kDevice, Access::kRead, /*stream=*/kSomeStream);
  for (int round = 0; round < 10 && !granted; ++round) {
    for (const Action& action : residency.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant && action.after_copy;
      copying |= action.kind == Action::Kind::kCopyIn && action.tile == 0;
      if (action.kind == Action::Kind::kRead) residency.TransferDone(action.tile, {});
    }
  }
  ASSERT_TRUE(granted && copying);
  residency.TransferDone(0, absl::InternalError("the copy failed"));
  EXPECT_TRUE(absl::IsInternal(residency.TakeWriteError()));
  EXPECT_EQ(residency.stats().plan.deviations, 1u);
}

// Of the tiles that a plan leases in turn the device has room for one, so a reader who does not ask
// would keep it from the other.
TEST(ResidencyPlan, NobodyTakesATileThatThePlanMovesNext) {
  Residency residency(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) residency.AddTile(kTileBytes, Role::kParameter, false, true);
  const auto lease = [&](TileIndex tile) {
    bool granted = false;
    residency.Acquire(/*ticket=*/1, tile, Tier::kDevice, Access::kRead, /*stream=*/nullptr);
    for (int round = 0; round < 20 && !granted; ++round) {
      for (const Action& action : residency.TakeActions()) {
        granted |= action.kind == Action::Kind::kGrant;
        if (action.kind == Action::Kind::kRead || action.kind == Action::Kind::kCopyIn)
          residency.TransferDone(action.tile, {});
      }
    }
    EXPECT_TRUE(granted);
    const auto ended = residency.EndLease(tile, Tier::kDevice, Access::kRead, /*drained=*/false);
    for (const Action& action : residency.TakeActions()) residency.TransferDone(action.tile, {});
    residency.LetIn(ended);
  };

  lease(0);
  EXPECT_TRUE(residency.leases().TryTake(0, Tier::kDevice)) << "nothing is planned yet";
  residency.Shared(0, Tier::kDevice);
  residency.LetIn(residency.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/false));

  residency.FollowPlan(TilesOneByOne({0, 1}));
  for (int period = 0; period < 3; ++period) {
    for (const TileIndex tile : {0, 1}) {
      lease(tile);
      EXPECT_FALSE(residency.leases().TryTake(tile, Tier::kDevice));
    }
  }
  EXPECT_EQ(residency.stats().plan.deviations, 0u);
}

// A stream still works on the last lease of a tile that leaves next: who runs ahead of the stream
// must not take the tile meanwhile.
TEST(ResidencyPlan, NobodyTakesATileWhoseLastLeaseWaitsForItsStream) {
  Residency residency(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) residency.AddTile(kTileBytes, Role::kParameter, false, true);
  residency.FollowPlan(TilesOneByOne({0, 0, 1}));

  bool granted = false;
  residency.Acquire(/*ticket=*/1, /*tile=*/0, Tier::kDevice, Access::kRead, /*stream=*/nullptr);
  for (int round = 0; round < 20 && !granted; ++round) {
    for (const Action& action : residency.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant;
      if (action.kind == Action::Kind::kRead || action.kind == Action::Kind::kCopyIn)
        residency.TransferDone(action.tile, {});
    }
  }
  ASSERT_TRUE(granted);
  const auto ended = residency.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/false);
  (void)residency.TakeActions();
  residency.LetIn(ended);
  ASSERT_TRUE(residency.leases().TryTake(0, Tier::kDevice)) << "it is read again next";
  residency.Shared(0, Tier::kDevice);
  residency.BeginDrain(0, Tier::kDevice, Access::kRead, kSomeStream);
  EXPECT_FALSE(residency.leases().TryTake(0, Tier::kDevice));
  EXPECT_EQ(residency.stats().plan.deviations, 0u);
}

// The plan drops the tile after its last release. An earlier lease may outlast that one: its stream
// is behind. The plan waits for the stream; it is not left.
TEST(ResidencyPlan, ADropWaitsForAnEarlierLeaseWhoseStreamIsBehind) {
  Residency residency(OneDeviceFrame());
  for (int i = 0; i < 2; ++i) residency.AddTile(kTileBytes, Role::kParameter, false, true);
  residency.FollowPlan(TilesOneByOne({0, 0, 1}));
  Ticket granted = kNoTicket;
  const auto run = [&] {
    for (int round = 0; round < 20; ++round) {
      for (const Action& action : residency.TakeActions()) {
        if (action.kind == Action::Kind::kGrant) granted = action.ticket;
        if (action.kind == Action::Kind::kRead || action.kind == Action::Kind::kCopyIn)
          residency.TransferDone(action.tile, {});
      }
    }
  };
  const auto acquire = [&](Ticket ticket, TileIndex tile) {
    residency.Acquire(ticket, tile, Tier::kDevice, Access::kRead, /*stream=*/nullptr);
    run();
  };

  acquire(1, 0);
  ASSERT_EQ(granted, 1u);
  residency.BeginDrain(0, Tier::kDevice, Access::kRead, kSomeStream);
  acquire(2, 0);
  ASSERT_EQ(granted, 2u);
  (void)residency.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/false);
  acquire(3, 1);
  EXPECT_EQ(granted, 2u) << "the stream still reads tile 0 in the only frame";
  EXPECT_EQ(residency.stats().plan.deviations, 0u);

  (void)residency.EndLease(0, Tier::kDevice, Access::kRead, /*drained=*/true);
  run();
  EXPECT_EQ(granted, 3u);
  EXPECT_EQ(residency.stats().plan.deviations, 0u);
}

// It is the next lease that reports a write that failed, so there is none without asking.
TEST(ResidencyPlan, AfterAFailedWriteEveryLeaseIsAskedFor) {
  ResidencyOptions options;
  options.pinned_bytes = 2 * kTileBytes;
  options.has_store = true;
  options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
  Residency residency(options);
  for (int i = 0; i < 3; ++i) residency.AddTile(kTileBytes, Role::kParameter, false, false);
  TileIndex written = 0;
  for (TileIndex tile = 0; tile < 2; ++tile) {
    residency.Acquire(/*ticket=*/1, tile, Tier::kPinned, Access::kDiscard, /*stream=*/nullptr);
    for (const Action& action : residency.TakeActions()) written = action.tile;
    const auto ended = residency.EndLease(tile, Tier::kPinned, Access::kDiscard, false);
    for (const Action& action : residency.TakeActions()) {
      EXPECT_EQ(action.kind, Action::Kind::kWrite) << "behind, as pinned memory is half full";
      written = action.tile;
    }
    residency.LetIn(ended);
  }
  ASSERT_TRUE(residency.leases().TryTake(1, Tier::kPinned));
  residency.Shared(1, Tier::kPinned);
  residency.LetIn(residency.EndLease(1, Tier::kPinned, Access::kRead, /*drained=*/false));
  residency.TransferDone(written, absl::UnavailableError("no room on the disk"));
  EXPECT_FALSE(residency.leases().TryTake(1, Tier::kPinned));
  EXPECT_TRUE(absl::IsUnavailable(residency.TakeWriteError()));
}

}  // namespace
}  // namespace spillway::engine
