// SPDX-License-Identifier: Apache-2.0
//
// The pager when its bytes are replaced by another commit's: which copies are dropped, which are
// kept, and that no older bytes are written afterwards.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/engine/pager/pager.h"
#include "tests/engine/pager_options.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kUnit = kFrameAlignment;
constexpr Ticket kTicket = 7;

PagerOptions Options() { return WithStore(8 * kUnit, 8 * kUnit); }

// Two tiles that a commit has, one that was never written, and a transient one.
class PagerReset : public testing::Test {
 protected:
  PagerReset() : pager_(Options()) {
    pager_.AddTile(kUnit, Role::kParameter, /*transient=*/false, /*stored=*/true);
    pager_.AddTile(kUnit, Role::kParameter, false, true);
    pager_.AddTile(kUnit, Role::kMoment, false, false);
    pager_.AddTile(kUnit, Role::kGradient, true, false);
  }

  // Ends all transfers and returns all actions.
  std::vector<Action> Run() {
    std::vector<Action> seen;
    for (std::vector<Action> actions = pager_.TakeActions(); !actions.empty();
         actions = pager_.TakeActions()) {
      for (const Action& action : actions) {
        seen.push_back(action);
        if (action.kind == Action::Kind::kTransfer)
          pager_.TransferDone(action.tile, absl::OkStatus());
      }
    }
    return seen;
  }
  void RunWithFailedWrites() {
    for (std::vector<Action> actions = pager_.TakeActions(); !actions.empty();
         actions = pager_.TakeActions()) {
      for (const Action& action : actions) {
        if (action.kind != Action::Kind::kTransfer) continue;
        const bool fails = action.Is(Transfer::kWrite);
        pager_.TransferDone(action.tile, fails ? absl::UnavailableError("EIO") : absl::OkStatus());
      }
    }
  }
  static bool Has(const std::vector<Action>& actions, Action::Kind kind) {
    return std::any_of(actions.begin(), actions.end(),
                       [kind](const Action& action) { return action.kind == kind; });
  }
  static bool Has(const std::vector<Action>& actions, Transfer transfer) {
    return std::any_of(actions.begin(), actions.end(),
                       [transfer](const Action& action) { return action.Is(transfer); });
  }

  // Writes the tile in the device tier.
  void Write(TileIndex tile) {
    pager_.Acquire(kTicket, tile, Tier::kDevice, Access::kDiscard, /*stream=*/nullptr);
    ASSERT_TRUE(Has(Run(), Action::Kind::kGrant));
    pager_.EndLease(tile, Tier::kDevice, Access::kDiscard, /*drained=*/false);
    Run();
  }
  // Leases the tile for reading in the device tier and returns the actions that this takes.
  std::vector<Action> Read(TileIndex tile) {
    pager_.Acquire(kTicket, tile, Tier::kDevice, Access::kRead, nullptr);
    const std::vector<Action> kinds = Run();
    pager_.EndLease(tile, Tier::kDevice, Access::kRead, /*drained=*/false);
    return kinds;
  }
  void Reset(TileIndex stored_below) {
    pager_.Pause();
    Run();
    pager_.Reset([=](TileIndex tile) { return tile < stored_below; });
  }
  uint64_t NowBytes(Tier tier) const {
    return pager_.pages().stats().tiers[static_cast<size_t>(tier)].now_bytes;
  }

  Pager pager_;
};

TEST_F(PagerReset, BytesWrittenSinceAreForgottenAndNeverReachTheStore) {
  Write(0);
  Reset(/*stored_below=*/2);
  EXPECT_EQ(NowBytes(Tier::kDevice), 0u);
  EXPECT_EQ(NowBytes(Tier::kPinned), 0u);
  EXPECT_EQ(NowBytes(Tier::kNvme), 2 * kUnit);
  const std::vector<Action> read = Read(0);
  EXPECT_TRUE(Has(read, Transfer::kRead));
  pager_.Commit(kTicket);
  EXPECT_FALSE(Has(Run(), Transfer::kWrite)) << "nothing is newer than the store";
}

TEST_F(PagerReset, ATileThatTheCommitDoesNotHaveWasNeverWritten) {
  Write(1);
  Write(2);
  Reset(/*stored_below=*/1);
  for (const TileIndex tile : {TileIndex{1}, TileIndex{2}}) {
    const std::vector<Action> read = Read(tile);
    EXPECT_TRUE(Has(read, Transfer::kZero));
    EXPECT_FALSE(Has(read, Transfer::kRead));
  }
  EXPECT_EQ(NowBytes(Tier::kNvme), kUnit);
}

TEST_F(PagerReset, ATransientTileIsDiscardedInMemoryAndOnNvme) {
  Write(3);
  ASSERT_TRUE(pager_.Evict(3).ok());
  ASSERT_TRUE(Has(Run(), Transfer::kWrite));
  pager_.Pause();
  pager_.Reset([](TileIndex) { return true; });
  EXPECT_TRUE(Has(Run(), Action::Kind::kForget));
  EXPECT_TRUE(Has(Read(3), Transfer::kZero));
}

TEST_F(PagerReset, DeclaredUsesAreForgotten) {
  pager_.Declare(0, Tier::kDevice, Access::kRead);
  pager_.Declare(1, Tier::kDevice, Access::kRead);
  pager_.Pause();
  EXPECT_TRUE(Run().empty()) << "no prefetch begins";
  pager_.Reset([](TileIndex tile) { return tile < 2; });
  EXPECT_TRUE(Run().empty());
}

TEST_F(PagerReset, ATransferInFlightEndsFirst) {
  pager_.Declare(0, Tier::kDevice, Access::kRead);
  const std::vector<Action> begun = pager_.TakeActions();
  ASSERT_EQ(begun.size(), 1u);
  pager_.Pause();
  EXPECT_EQ(pager_.transfers_in_flight(), 1);
  pager_.TransferDone(begun[0].tile, absl::OkStatus());
  EXPECT_TRUE(Run().empty()) << "the copy to the device does not follow";
  EXPECT_EQ(pager_.transfers_in_flight(), 0);
  pager_.Reset([](TileIndex tile) { return tile < 2; });
  EXPECT_TRUE(Has(Read(0), Transfer::kRead));
}

TEST_F(PagerReset, AWriteThatFailedIsNoMatterAfterwards) {
  Write(0);
  ASSERT_TRUE(pager_.Evict(0).ok());
  RunWithFailedWrites();
  Reset(/*stored_below=*/2);
  EXPECT_TRUE(pager_.TakeWriteError().ok());
}

TEST(PagerStop, NothingIsWrittenThatNobodyRequested) {
  for (const bool stops : {false, true}) {
    Pager pager(WithStore(2 * kUnit, 3 * kUnit));
    for (TileIndex tile = 0; tile < 4; ++tile) pager.AddTile(kUnit, Role::kMoment, false, false);
    for (TileIndex tile = 0; tile < 2; ++tile)
      pager.Acquire(kTicket + tile, tile, Tier::kPinned, Access::kDiscard, nullptr);
    ASSERT_EQ(pager.TakeActions().size(), 2u);  // both are granted
    for (TileIndex tile = 0; tile < 2; ++tile)
      pager.EndLease(tile, Tier::kPinned, Access::kDiscard, /*drained=*/false);
    if (stops) pager.Stop();
    const std::vector<Action> actions = pager.TakeActions();
    const auto writes = [](const Action& action) { return action.Is(Transfer::kWrite); };
    EXPECT_EQ(std::any_of(actions.begin(), actions.end(), writes), !stops);
  }
}

// A commit tries the writes of its own tiles again. It does not need those of transient tiles,
// whose bytes are still in memory: their failure stays for the next caller that is not a commit.
TEST_F(PagerReset, AFailedWriteOfATransientTileFailsNoCommitAndIsReportedAfterIt) {
  for (const TileIndex tile : {TileIndex{2}, TileIndex{3}}) {
    Write(tile);
    ASSERT_TRUE(pager_.Evict(tile).ok());
    RunWithFailedWrites();
    EXPECT_TRUE(pager_.TakeLostError().ok());
    pager_.Commit(kTicket);
    EXPECT_TRUE(Has(Run(), Action::Kind::kGrant));
    const bool is_transient = tile == 3;
    EXPECT_EQ(pager_.TakeWriteError().ok(), !is_transient);
    EXPECT_TRUE(pager_.TakeWriteError().ok());
    EXPECT_FALSE(Has(Read(tile), Transfer::kZero)) << "its bytes are still there";
  }
}

TEST_F(PagerReset, ResumeChangesNothing) {
  Write(0);
  pager_.Pause();
  Run();
  pager_.Resume();
  EXPECT_FALSE(Has(Read(0), Transfer::kRead)) << "the newest bytes are in the device";
  pager_.Commit(kTicket);
  EXPECT_TRUE(Has(Run(), Transfer::kWrite));
}

}  // namespace
}  // namespace spillway::engine
