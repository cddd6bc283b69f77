// SPDX-License-Identifier: Apache-2.0
//
// Single leases through the pager: the frames of new tiles that rest in memory, and writers whose
// lease ends before the end of the copy that it needed is reported.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "src/engine/pager/pager.h"
#include "tests/engine/pager_options.h"
#include "tests/engine/small_plan.h"

namespace spillway::engine {
namespace {

const int stream_of_work = 0;
constexpr StreamId kSomeStream = &stream_of_work;

constexpr uint64_t kTileBytes = kFrameAlignment;
constexpr Ticket kTicket = 1;

PagerOptions PinnedOnly(uint64_t num_frames) { return WithStore(0, num_frames * kTileBytes); }

TileIndex AddStored(Pager& pager, Role role = Role::kParameter) {
  return pager.AddTile(kTileBytes, role, /*transient=*/false, /*stored=*/true);
}

// Requests a read lease in pinned memory and carries out the transfers that it needs. Returns
// whether the lease was granted.
bool Lease(Pager& pager, TileIndex tile) {
  bool granted = false, moves = true;
  pager.Acquire(kTicket, tile, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
  while (moves && !granted) {
    moves = false;
    for (const Action& action : pager.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant;
      if (!action.Is(Transfer::kRead)) continue;
      pager.TransferDone(action.tile, {});
      moves = true;
    }
  }
  return granted;
}

void End(Pager& pager, TileIndex tile) {
  pager.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/false);
  (void)pager.TakeActions();
}

// Four tiles fill pinned memory. Returns the action that answers the request for the frame of a new
// tile, once all transfers have ended.
class FrameOfANewTile : public testing::Test {
 protected:
  FrameOfANewTile() : pager_(Options()) {
    for (TileIndex tile = 0; tile < 8; ++tile) AddStored(pager_);
    for (TileIndex tile = 0; tile < 4; ++tile) {
      EXPECT_TRUE(Lease(pager_, tile));
      at_[pager_.pages()[tile].copy(Tier::kPinned).offset / kTileBytes] = tile;
    }
  }
  static PagerOptions Options() {
    PagerOptions options = PinnedOnly(4);
    options.placement[static_cast<size_t>(Role::kMoment)] = Tier::kPinned;
    return options;
  }
  // Ends the lease of the tile whose frame is the n-th of the arena.
  void EndLeaseAt(size_t n) { End(pager_, at_.at(n)); }
  Action Reserve() {
    const TileIndex tile = AddStored(pager_, Role::kMoment);
    pager_.Reserve(kTicket, tile);
    const std::vector<Action> actions = pager_.TakeActions();
    EXPECT_EQ(actions.size(), 1u);
    return actions.empty() ? Action{} : actions[0];
  }
  uint64_t OffsetOf(const Action& grant) const {
    return pager_.pages()[grant.tile].copy(Tier::kPinned).offset;
  }

  Pager pager_;
  std::array<TileIndex, 4> at_ = {};
};

TEST_F(FrameOfANewTile, IsTheLowestThatCanBeEmptied) {
  for (size_t n = 0; n < 4; ++n) EndLeaseAt(n);
  for (uint64_t n = 0; n < 3; ++n) {
    const Action action = Reserve();
    ASSERT_EQ(action.kind, Action::Kind::kGrant) << action.status;
    EXPECT_EQ(OffsetOf(action), n * kTileBytes);
    EXPECT_EQ(pager_.pages().tiles()[action.tile].reserved_frame, n * kTileBytes);
  }
}

TEST_F(FrameOfANewTile, LiesAboveLeasesThatAreInTheWay) {
  EndLeaseAt(2);
  const Action action = Reserve();
  ASSERT_EQ(action.kind, Action::Kind::kGrant) << action.status;
  EXPECT_EQ(OffsetOf(action), 2 * kTileBytes);
  EndLeaseAt(0);
  EXPECT_EQ(OffsetOf(Reserve()), 0u) << "there is no room above, and by now there is below";
}

TEST_F(FrameOfANewTile, IsRefusedWhereLeasesLeaveNoRoom) {
  const Action action = Reserve();
  ASSERT_EQ(action.kind, Action::Kind::kFail);
  EXPECT_TRUE(absl::IsResourceExhausted(action.status)) << action.status;
  EXPECT_NE(action.status.message().find("leases in the way: tile 0"), std::string::npos)
      << action.status;
}

// The lease of a stream that waits for a copy may end before the end of the copy is reported. The
// written bytes are on the device alone all the same. Until the end is reported, no caller may
// lease the older bytes, whose frame is still being read. The same holds if the lease ends on
// another stream or on none.
TEST(PagerLease, AWriterWhoEndsBeforeItsCopyIsToldLeavesNoOlderBytes) {
  for (const bool drains : {true, false}) {
    PagerOptions options = PinnedOnly(2);
    options.device_bytes = kTileBytes;
    Pager pager(options);
    const TileIndex tile = AddStored(pager);
    ASSERT_TRUE(Lease(pager, tile));
    End(pager, tile);
    pager.Acquire(kTicket, tile, Tier::kDevice, Access::kReadWrite, /*stream=*/kSomeStream);
    const std::vector<Action> actions = pager.TakeActions();
    ASSERT_TRUE(std::any_of(actions.begin(), actions.end(),
                            [](const Action& action) { return action.after_copy; }));
    if (drains) pager.BeginDrain(tile, Tier::kDevice, Access::kReadWrite, kSomeStream);
    pager.EndLease(tile, Tier::kDevice, Access::kReadWrite, drains);
    (void)pager.TakeActions();
    pager.Acquire(kTicket, tile, Tier::kPinned, Access::kRead, /*stream=*/nullptr);
    EXPECT_TRUE(pager.TakeActions().empty());
    EXPECT_TRUE(pager.pages().arena(Tier::kPinned).used_bytes() > 0);
    pager.TransferDone(tile, {});
    const std::vector<Action> next = pager.TakeActions();
    ASSERT_EQ(next.size(), 1u);
    EXPECT_TRUE(next[0].Is(Transfer::kCopyOut));
  }
}

// Brings the pager's tile to the device for a writer whose stream ends before the end of the copy
// is reported.
void WriteBeforeTheCopyIsTold(Pager& pager, TileIndex tile) {
  ASSERT_TRUE(Lease(pager, tile));
  End(pager, tile);
  pager.Acquire(kTicket, tile, Tier::kDevice, Access::kReadWrite, /*stream=*/kSomeStream);
  const std::vector<Action> actions = pager.TakeActions();
  ASSERT_TRUE(std::any_of(actions.begin(), actions.end(),
                          [](const Action& action) { return action.after_copy; }));
  pager.EndLease(tile, Tier::kDevice, Access::kReadWrite, /*drained=*/false);
  (void)pager.TakeActions();
}

// Ends the tile's copy to the device, and expects that its bytes then go to NVMe.
void EndCopyAndGoDown(Pager& pager, TileIndex tile) {
  for (const Transfer transfer : {Transfer::kCopyOut, Transfer::kWrite}) {
    pager.TransferDone(tile, {});
    const std::vector<Action> next = pager.TakeActions();
    ASSERT_EQ(next.size(), 1u);
    EXPECT_TRUE(next[0].Is(transfer));
  }
  pager.TransferDone(tile, {});
}

// The copy in pinned memory is void when the end of the copy is reported. Its eviction would free
// the frame once more. What the device has is what must leave.
TEST(PagerLease, AnEvictionThenMovesWhatTheWriterWrote) {
  PagerOptions options = PinnedOnly(2);
  options.device_bytes = kTileBytes;
  Pager pager(options);
  const TileIndex tile = AddStored(pager);
  WriteBeforeTheCopyIsTold(pager, tile);
  ASSERT_TRUE(pager.Evict(tile).ok());
  EXPECT_TRUE(pager.TakeActions().empty());
  EndCopyAndGoDown(pager, tile);
  EXPECT_TRUE(pager.TakeActions().empty());
  EXPECT_EQ(pager.pages().arena(Tier::kPinned).used_bytes(), 0u);
}

// NVMe still has the bytes from before the writer.
TEST(PagerLease, ACommitThenWritesWhatTheWriterWrote) {
  PagerOptions options = PinnedOnly(2);
  options.device_bytes = kTileBytes;
  Pager pager(options);
  const TileIndex tile = AddStored(pager);
  WriteBeforeTheCopyIsTold(pager, tile);
  pager.Commit(kTicket);
  EXPECT_TRUE(pager.TakeActions().empty());
  EndCopyAndGoDown(pager, tile);
  const std::vector<Action> last = pager.TakeActions();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].kind, Action::Kind::kGrant);
}

// If the copy fails, what the writer wrote is lost, so the commit must not hold older bytes.
TEST(PagerLease, ACommitFailsIfTheWriterWroteBeforeAFailedCopy) {
  PagerOptions options = PinnedOnly(2);
  options.device_bytes = kTileBytes;
  Pager pager(options);
  const TileIndex tile = AddStored(pager);
  WriteBeforeTheCopyIsTold(pager, tile);
  pager.Commit(kTicket);
  EXPECT_TRUE(pager.TakeActions().empty());
  pager.TransferDone(tile, absl::InternalError("the copy failed"));
  const std::vector<Action> last = pager.TakeActions();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].kind, Action::Kind::kFail);
  EXPECT_TRUE(absl::IsInternal(last[0].status));
}

// A plan brings the bytes, and the copy fails. What the writer's stream wrote is lost, so the error
// must be reported.
TEST(PagerLease, AFailedCopyBehindAWriterWhoHasEndedIsTold) {
  PagerOptions options = PinnedOnly(4);
  options.device_bytes = kTileBytes;
  Pager pager(options);
  for (int i = 0; i < 2; ++i) AddStored(pager);
  const std::vector<SmallLease> leases = {{0, Access::kReadWrite}, {1, Access::kReadWrite}};
  pager.plan().Follow(FollowerOf(LeasesInTurn(2, kTileBytes, Tier::kDevice, leases),
                                 {.device_bytes = kTileBytes, .pinned_bytes = 4 * kTileBytes}));

  bool granted = false;
  pager.Acquire(kTicket, /*tile=*/0, Tier::kDevice, Access::kReadWrite, /*stream=*/kSomeStream);
  for (int round = 0; round < 10 && !granted; ++round) {
    for (const Action& action : pager.TakeActions()) {
      granted |= action.kind == Action::Kind::kGrant && action.after_copy;
      if (action.Is(Transfer::kRead)) pager.TransferDone(action.tile, {});
    }
  }
  ASSERT_TRUE(granted);
  pager.BeginDrain(0, Tier::kDevice, Access::kReadWrite, kSomeStream);
  pager.EndLease(0, Tier::kDevice, Access::kReadWrite, /*drained=*/true);
  (void)pager.TakeActions();
  pager.TransferDone(0, absl::InternalError("the copy failed"));
  EXPECT_TRUE(absl::IsInternal(pager.TakeWriteError()));
}

}  // namespace
}  // namespace spillway::engine
