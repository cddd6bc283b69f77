// SPDX-License-Identifier: Apache-2.0
//
// The state machine beside readers that take leases without asking: where they may not, and what
// they must not change for others.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

const int stream_of_work = 0;
constexpr StreamId kSomeStream = &stream_of_work;

constexpr uint64_t kTileBytes = kFrameAlignment;
constexpr Ticket kTicket = 1;

ResidencyOptions PinnedOnly(uint64_t num_frames) {
  ResidencyOptions options;
  options.pinned_bytes = num_frames * kTileBytes;
  options.has_store = true;
  options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
  return options;
}

TileIndex AddStored(Residency& residency, Role role = Role::kParameter) {
  return residency.AddTile(kTileBytes, role, /*transient=*/false, /*stored=*/true);
}

// Asks for a lease for reading in pinned memory and carries out what it takes.
bool Lease(Residency& residency, TileIndex tile) {
  bool granted = false, moves = true;
  residency.Acquire(kTicket, tile, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
  while (moves && !granted) {
    moves = false;
    for (const Action& action : residency.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant;
      if (action.kind != Action::Kind::kRead) continue;
      residency.TransferDone(action.tile, {});
      moves = true;
    }
  }
  return granted;
}

void End(Residency& residency, TileIndex tile) {
  const auto ended = residency.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/false);
  (void)residency.TakeActions();
  residency.LetIn(ended);
}

// Such a frame is left before the next lease, so nobody may have that without asking.
TEST(ResidencyLease, NobodyStaysWhereFramesOfARoleWillLie) {
  ResidencyOptions options = PinnedOnly(4);
  options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kPinned;
  Residency residency(options);
  const TileIndex early = AddStored(residency), late = AddStored(residency);
  for (int i = 0; i < 3; ++i) AddStored(residency);  // more than there are frames: none has its own
  ASSERT_TRUE(Lease(residency, early));
  End(residency, early);
  ASSERT_TRUE(Lease(residency, late));
  ASSERT_TRUE(residency.leases().count(early, Tier::kPinned).is_open());
  ASSERT_LT(std::max(residency.pinned_offset(early), residency.pinned_offset(late)),
            2 * kTileBytes);

  for (int i = 0; i < 2; ++i) AddStored(residency, Role::kMoment);
  EXPECT_FALSE(residency.leases().TryTake(early, Tier::kPinned));
  End(residency, late);
  EXPECT_FALSE(residency.leases().TryTake(late, Tier::kPinned));

  for (const TileIndex tile : {early, late}) {
    ASSERT_TRUE(Lease(residency, tile));
    EXPECT_GE(residency.pinned_offset(tile), 2 * kTileBytes);
    End(residency, tile);
    EXPECT_TRUE(residency.leases().count(tile, Tier::kPinned).is_open());
  }
}

// A caller waits until streams let go of all tiles. While these are weighed for it, the one that
// is unused longest gets a reader: the caller gets another's room, and does not wait for the
// reader.
TEST(ResidencyLease, AReaderWhoComesDuringTheSearchIsNotWaitedFor) {
  constexpr TileIndex kTiles = 300;
  constexpr int kRounds = 300;
  int taken = 0;
  for (int round = 0; round < kRounds; ++round) {
    Residency residency(PinnedOnly(kTiles));
    for (TileIndex tile = 0; tile <= kTiles; ++tile) AddStored(residency);
    for (TileIndex tile = 0; tile < kTiles; ++tile) {
      ASSERT_TRUE(Lease(residency, tile));
      residency.BeginDrain(tile, Tier::kPinned, Access::kRead, kSomeStream);
    }
    residency.Acquire(kTicket, kTiles, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
    ASSERT_TRUE(residency.TakeActions().empty());
    for (TileIndex tile = 0; tile < kTiles; ++tile)
      residency.LetIn(residency.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/true));
    std::atomic<bool> is_reader_there = false;
    std::atomic<int64_t> begin_ns = 0;
    std::optional<uint64_t> lease;
    std::thread reader([&] {
      is_reader_there = true;
      while (begin_ns == 0) {
      }
      while (base::NowNs() < begin_ns + round * 100) {  // at all moments of a search
      }
      lease = residency.leases().TryTake(/*tile=*/0, Tier::kPinned);
    });
    while (!is_reader_there) std::this_thread::yield();
    begin_ns = base::NowNs();
    const std::vector<Action> actions = residency.TakeActions();
    reader.join();
    EXPECT_TRUE(std::any_of(actions.begin(), actions.end(),
                            [&](const Action& action) {
                              return action.kind == Action::Kind::kRead && action.tile == kTiles;
                            }))
        << "round " << round;
    if (lease) ++taken;
  }
  std::printf("%d readers came in time\n", taken);
}

// The lease of a stream that waits for a copy may end before the copy's end is told: what was
// written is on the device alone all the same.
TEST(ResidencyLease, AWriterWhoEndsBeforeItsCopyIsToldLeavesNoOlderBytes) {
  ResidencyOptions options = PinnedOnly(2);
  options.device_bytes = kTileBytes;
  Residency residency(options);
  const TileIndex tile = AddStored(residency);
  ASSERT_TRUE(Lease(residency, tile));
  End(residency, tile);
  residency.Acquire(kTicket, tile, Tier::kDevice, Access::kReadWrite, /*stream=*/kSomeStream);
  const std::vector<Action> actions = residency.TakeActions();
  ASSERT_TRUE(std::any_of(actions.begin(), actions.end(),
                          [](const Action& action) { return action.after_copy; }));
  residency.BeginDrain(tile, Tier::kDevice, Access::kReadWrite, kSomeStream);
  const auto ended = residency.EndLease(tile, Tier::kDevice, Access::kReadWrite, /*drained=*/true);
  (void)residency.TakeActions();
  residency.LetIn(ended);
  residency.TransferDone(tile, {});

  residency.Acquire(kTicket, tile, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
  const std::vector<Action> next = residency.TakeActions();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].kind, Action::Kind::kCopyOut);
}

// The same where a plan brings the bytes and the copy fails: what the writer's stream wrote into is
// nobody's, and someone must be told.
TEST(ResidencyLease, AFailedCopyBehindAWriterWhoHasEndedIsTold) {
  plan::TraceRecorder recorder;
  for (int i = 0; i < 2; ++i) recorder.AddTile({.size_bytes = kTileBytes, .stored = true});
  recorder.Begin(0);
  for (plan::TileIndex tile = 0; tile < 2; ++tile) {
    recorder.Acquire(tile, Tier::kDevice, Access::kReadWrite, 0, 0);
    recorder.Release(tile, Tier::kDevice, Access::kReadWrite, 0);
  }
  StepPlan step{.trace = recorder.End()};
  auto made =
      plan::MakePlan(step.trace, {.device_bytes = kTileBytes, .pinned_bytes = 4 * kTileBytes});
  ASSERT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  ResidencyOptions options = PinnedOnly(4);
  options.device_bytes = kTileBytes;
  Residency residency(options);
  for (int i = 0; i < 2; ++i) AddStored(residency);
  residency.FollowPlan(std::make_shared<const StepPlan>(std::move(step)));

  bool granted = false;
  residency.Acquire(kTicket, /*tile=*/0, Tier::kDevice, Access::kReadWrite, /*stream=*/kSomeStream);
  for (int round = 0; round < 10 && !granted; ++round) {
    for (const Action& action : residency.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant && action.after_copy;
      if (action.kind == Action::Kind::kRead) residency.TransferDone(action.tile, {});
    }
  }
  ASSERT_TRUE(granted);
  residency.BeginDrain(0, Tier::kDevice, Access::kReadWrite, kSomeStream);
  const auto ended = residency.EndLease(0, Tier::kDevice, Access::kReadWrite, /*drained=*/true);
  (void)residency.TakeActions();
  residency.LetIn(ended);
  residency.TransferDone(0, absl::InternalError("the copy failed"));
  EXPECT_TRUE(absl::IsInternal(residency.TakeWriteError()));
}

}  // namespace
}  // namespace spillway::engine
