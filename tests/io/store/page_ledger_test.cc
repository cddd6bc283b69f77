// SPDX-License-Identifier: Apache-2.0
//
// Tests the ledger's contract: it gives up an extent exactly once, and never while a commit that
// may be the durable one names it.

#include "io/store/page_ledger.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/seed.h"

namespace spillway::io {
namespace {

constexpr uint64_t kUnit = kIoAlignment;

PageRecord At(uint64_t unit) {
  return {{static_cast<uint16_t>(unit % 3), static_cast<uint32_t>(unit % 5), unit * kUnit, kUnit},
          static_cast<uint32_t>(unit % kUnit),
          unit * 0x9e3779b97f4a7c15u};
}

TEST(PageLedger, KeepsARecordAsItWas) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  const PageRecord largest = {
      .extent = {255, (1u << 24) - 1, (uint64_t{1} << 44) - kUnit, 0xfffff000u},
      .content_bytes = 0xffffe000u,
      .checksum = UINT64_MAX,
      .skip_bytes = 0x1000,
      .packed = true};
  EXPECT_EQ(ledger.Find({0, 7}), std::nullopt);
  EXPECT_EQ(ledger.Record({0, 7}, largest), std::nullopt);
  EXPECT_EQ(ledger.Find({0, 7}), largest);
  EXPECT_EQ(ledger.Find({0, 6}), std::nullopt);
  EXPECT_EQ(ledger.Find({0, 8}), std::nullopt);
}

TEST(PageLedger, AnUncommittedCopyIsFreedAtOnce) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  EXPECT_EQ(ledger.Record({0, 0}, At(1)), std::nullopt);
  EXPECT_EQ(ledger.Record({0, 0}, At(2)), At(1));
  EXPECT_EQ(ledger.Forget({0, 0}), At(2));
  EXPECT_EQ(ledger.Forget({0, 0}), std::nullopt);
}

TEST(PageLedger, RecordingTheSameExtentAgainFreesNothing) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  ledger.Record({0, 0}, At(1));
  EXPECT_EQ(ledger.Record({0, 0}, At(1)), std::nullopt);
  EXPECT_EQ(ledger.Changed().size(), 1u);
}

TEST(PageLedger, ACommittedCopyIsTheCatalogsToFree) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  ledger.Record({0, 0}, At(1));
  EXPECT_TRUE(ledger.Committed().empty());
  EXPECT_EQ(ledger.Record({0, 0}, At(2)), std::nullopt);
  EXPECT_EQ(ledger.Record({0, 0}, At(3)), At(2));
  EXPECT_TRUE(ledger.Committed().empty()) << "the catalog knows the extents of commits";
  EXPECT_TRUE(ledger.Changed().empty());
}

TEST(PageLedger, LoadsARangeAroundWhatChanged) {
  PageLedger ledger;
  ledger.AddTensor(2000, /*transient=*/false, /*committed=*/true);
  EXPECT_TRUE(ledger.NeedsLoad({0, 1}));
  EXPECT_EQ(ledger.Record({0, 1}, At(9)), std::nullopt);
  EXPECT_EQ(ledger.Forget({0, 2}), std::nullopt);
  EXPECT_FALSE(ledger.NeedsLoad({0, 1}));
  EXPECT_FALSE(ledger.NeedsLoad({0, 2}));
  EXPECT_TRUE(ledger.NeedsLoad({0, 3}));
  for (uint64_t page = 0; page < 4; ++page) ledger.Load({0, page}, At(page + 1));
  ledger.SetLoaded({0, 700});
  EXPECT_EQ(ledger.Find({0, 0}), At(1));
  EXPECT_EQ(ledger.Find({0, 1}), At(9)) << "the newer copy";
  EXPECT_EQ(ledger.Find({0, 2}), std::nullopt) << "forgotten";
  EXPECT_EQ(ledger.Find({0, 3}), At(4));
  EXPECT_FALSE(ledger.NeedsLoad({0, 1023}));
  EXPECT_TRUE(ledger.NeedsLoad({0, 1024}));
  ledger.Committed();
  EXPECT_EQ(ledger.Find({0, 1}), At(9));
  EXPECT_EQ(ledger.Find({0, 2}), std::nullopt);
}

TEST(PageLedger, AResetGivesUpWhatNoCommitNames) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/true);
  ledger.AddTensor(20, /*transient=*/true, /*committed=*/false);
  ledger.Record({0, 1}, At(1));
  ledger.CommitInDoubt();
  ledger.Record({0, 1}, At(2));
  ledger.Record({0, 3}, At(3));
  ledger.Record({1, 3}, At(4));
  EXPECT_EQ(ledger.Reset(), (std::vector<PageRecord>{At(1), At(2), At(3)}));
  EXPECT_TRUE(ledger.Changed().empty());
  EXPECT_TRUE(ledger.NeedsLoad({0, 1}));
  EXPECT_EQ(ledger.Find({1, 3}), At(4));
}

TEST(PageLedger, ACommitInDoubtKeepsBothStates) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  ledger.Record({0, 0}, At(1));
  ledger.Committed();
  ledger.Record({0, 0}, At(2));
  ledger.CommitInDoubt();
  EXPECT_EQ(ledger.Record({0, 0}, At(3)), std::nullopt);
  EXPECT_EQ(ledger.Record({0, 0}, At(4)), At(3));
  EXPECT_EQ(ledger.Changed().size(), 1u);
  EXPECT_EQ(ledger.Committed(), std::vector<PageRecord>{At(2)});
}

TEST(PageLedger, TransientPagesAreNeverAmongTheChanges) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/true, /*committed=*/false);
  ledger.Record({0, 0}, At(1));
  EXPECT_TRUE(ledger.Changed().empty());
  ledger.Committed();
  EXPECT_EQ(ledger.Record({0, 0}, At(2)), At(1));
}

TEST(PageLedger, ChangesComeInOrderAndOnce) {
  PageLedger ledger;
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  ledger.AddTensor(20, /*transient=*/false, /*committed=*/false);
  ledger.Record({1, 4}, At(1));
  ledger.Record({0, 9}, At(2));
  ledger.Record({1, 4}, At(3));
  ledger.Record({0, 2}, At(4));
  const auto changed = ledger.Changed();
  EXPECT_EQ(std::vector<PageKey>(changed.begin(), changed.end()),
            (std::vector<PageKey>{{0, 2}, {0, 9}, {1, 4}}));
}

// Runs random changes of a ledger against a model of its extents, by unit, and of a catalog that
// keeps the last commit's extents. The durable states that a crash could restore must stay complete
// at every moment.
class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed) {
    ledger_.AddTensor(20, false, true);
    ledger_.AddTensor(20, true, false);
    ledger_.AddTensor(20, false, true);
  }

  void Step() {
    const PageKey key = {static_cast<TensorIndex>(random_() % 3), random_() % 20};
    switch (random_() % 16) {
      case 0: return Commit();
      case 1: return FailCommit();
      case 2:
      case 3: return Forget(key);
      case 4: return Look(key);
      default: return Write(key);
    }
  }
  void Check() {
    for (const auto& [key, unit] : newest_) {
      if (ledger_.NeedsLoad(key)) continue;
      ASSERT_EQ(ledger_.Find(key), At(unit));
    }
    std::set<uint64_t> needed;
    for (const auto& [key, unit] : newest_) needed.insert(unit);
    for (const auto& state : possible_) {
      for (const auto& [key, unit] : state) needed.insert(unit);
    }
    ASSERT_EQ(taken_, needed);
  }

 private:
  using State = std::map<PageKey, uint64_t>;

  void Write(PageKey key) {
    const uint64_t unit = next_unit_++;
    taken_.insert(unit);
    newest_[key] = unit;
    TakeBack(ledger_.Record(key, At(unit)));
  }
  void Forget(PageKey key) {
    newest_.erase(key);
    TakeBack(ledger_.Forget(key));
  }
  void Look(PageKey key) {
    if (ledger_.NeedsLoad(key)) {
      for (const auto& [other, unit] : possible_[0])
        if (other.tensor == key.tensor) ledger_.Load(other, At(unit));
      ledger_.SetLoaded(key);
    }
    const auto found = newest_.find(key);
    ASSERT_EQ(ledger_.Find(key),
              found == newest_.end() ? std::nullopt : std::optional(At(found->second)));
  }
  void Commit() {
    const State before = possible_[0];
    possible_ = {Lasting()};
    ledger_.Changed();
    for (const PageRecord& record : ledger_.Committed()) TakeBack(record);
    for (const auto& [key, unit] :
         before)  // frees the previous commit's extents, as the catalog does
      if (const auto now = newest_.find(key); now == newest_.end() || now->second != unit)
        TakeBack(At(unit));
  }
  void FailCommit() {
    possible_.push_back(Lasting());
    ledger_.CommitInDoubt();
  }
  State Lasting() const {
    State state;
    for (const auto& [key, unit] : newest_) {
      if (key.tensor != 1) state[key] = unit;
    }
    return state;
  }
  void TakeBack(const std::optional<PageRecord>& record) {
    if (!record) return;
    ASSERT_EQ(taken_.erase(record->extent.offset / kUnit), 1u) << "given up twice";
  }

  std::mt19937_64 random_;
  PageLedger ledger_;
  State newest_;
  std::vector<State> possible_ = {{}};  // the last commit, and those in doubt since
  std::set<uint64_t> taken_;
  uint64_t next_unit_ = 1;
};

TEST(PageLedger, GivesUpExactlyWhatNoPossibleCommitNames) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 20; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    RandomRun run(seed);
    for (int step = 0; step < 1000; ++step) {
      run.Step();
      run.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace spillway::io
