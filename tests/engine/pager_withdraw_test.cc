// SPDX-License-Identifier: Apache-2.0
//
// Callers that withdraw, one event after another. They are answered at once, and the transfers that
// they caused go on without a caller.

#include <gtest/gtest.h>

#include <vector>

#include "src/engine/pager/pager.h"
#include "tests/engine/pager_options.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kUnit = kFrameAlignment;
constexpr Ticket kTicket = 7;

class PagerWithdraw : public testing::Test {
 protected:
  PagerWithdraw() : pager_(WithStore(8 * kUnit, 8 * kUnit)) {
    pager_.AddTile(kUnit, Role::kParameter, /*transient=*/false, /*stored=*/true);
  }

  // Requests the tile, whose read begins, and withdraws.
  void AskAndWithdraw() {
    pager_.Acquire(kTicket, 0, Tier::kPinned, Access::kRead, nullptr);
    std::vector<Action> actions = pager_.TakeActions();
    ASSERT_EQ(actions.size(), 1u);
    ASSERT_TRUE(actions[0].Is(Transfer::kRead));
    pager_.Withdraw(kTicket);
    actions = pager_.TakeActions();
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Action::Kind::kFail);
    EXPECT_EQ(actions[0].ticket, kTicket);
    EXPECT_TRUE(absl::IsCancelled(actions[0].status)) << actions[0].status;
    EXPECT_FALSE(pager_.in_use());
  }
  // Takes the next lease on the tile. Returns whether the tile was read for it.
  bool IsReadForTheNext() {
    pager_.Acquire(kTicket + 1, 0, Tier::kPinned, Access::kRead, nullptr);
    std::vector<Action> actions = pager_.TakeActions();
    const bool is_read = actions.size() == 1 && actions[0].Is(Transfer::kRead);
    if (is_read) {
      pager_.TransferDone(0, absl::OkStatus());
      actions = pager_.TakeActions();
    }
    EXPECT_EQ(actions.size(), 1u);
    if (!actions.empty()) {
      EXPECT_EQ(actions[0].kind, Action::Kind::kGrant);
    }
    return is_read;
  }

  Pager pager_;
};

TEST_F(PagerWithdraw, WhatWasReadForItServesTheNext) {
  AskAndWithdraw();
  pager_.TransferDone(0, absl::OkStatus());
  EXPECT_TRUE(pager_.TakeActions().empty());
  EXPECT_FALSE(IsReadForTheNext());
}

// No caller waits for these bytes any more, so no other caller may receive the error.
TEST_F(PagerWithdraw, AReadThatFailsForNobodyFailsNobody) {
  AskAndWithdraw();
  pager_.TransferDone(0, absl::UnavailableError("the disk is gone"));
  EXPECT_TRUE(pager_.TakeActions().empty());
  EXPECT_TRUE(pager_.TakeWriteError().ok());
  EXPECT_TRUE(IsReadForTheNext());
}

}  // namespace
}  // namespace spillway::engine
