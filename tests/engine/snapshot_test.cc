// SPDX-License-Identifier: Apache-2.0
//
// Tests snapshots through the public engine: what a snapshot retains, what Restore brings back, and
// when calls are refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "spillway/engine.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr uint64_t kTiles = 12;
constexpr int64_t kTileValues = 3000;  // 12,000 bytes: not a whole number of pages

class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() {
    engine_ = Open(OpenMode::kCreate);
    weights_ = Register("w");
  }

  // Opens the engine with room for a third of a tensor in each tier, so that most tiles must move.
  std::unique_ptr<Engine> Open(OpenMode mode) {
    auto engine = Engine::Open({.store = {folder_ / "s"},
                                .mode = mode,
                                .device_bytes = 4 * 12 * kKiB,
                                .pinned_bytes = 4 * 12 * kKiB,
                                .page_bytes = 8 * kKiB});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  void Reopen() {
    engine_.reset();
    engine_ = Open(OpenMode::kOpenOrCreate);
  }
  TensorId Register(const std::string& name, bool transient = false) {
    const TensorSpec spec{.name = name,
                          .shape = {static_cast<int64_t>(kTiles), kTileValues},
                          .tile_rows = 1,
                          .transient = transient};
    auto id = engine_->Register(spec);
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  // Writes value + i to tile i, for every `each`-th tile.
  void Put(TensorId id, float value, uint64_t each = 1) {
    for (uint64_t tile = 0; tile < kTiles; tile += each) {
      auto lease = engine_->Acquire({id, tile}, Access::kDiscard);
      ASSERT_TRUE(lease.ok()) << lease.status();
      for (float& out : lease->as<float>()) out = value + static_cast<float>(tile);
    }
  }
  // Expects value + i in every tile i, or zeros in every tile if `zeros` is set.
  void ExpectHolds(TensorId id, float value, bool zeros = false) {
    for (uint64_t tile = 0; tile < kTiles; ++tile) {
      auto lease = engine_->Acquire({id, tile}, Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      const float expected = zeros ? 0 : value + static_cast<float>(tile);
      for (const float got : lease->as<float>()) ASSERT_EQ(got, expected) << "tile " << tile;
    }
  }
  void Commit(const std::string& state) { ASSERT_TRUE(engine_->Commit(state).ok()); }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  TensorId weights_;
};

TEST_F(SnapshotTest, RestoreBringsBackTheBytesAndTheUserState) {
  Put(weights_, 100);
  Commit("first");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  Put(weights_, 200, /*each=*/3);
  Commit("second");
  Put(weights_, 300);  // never committed
  const absl::Status restored = engine_->Restore("a");
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_EQ(engine_->UserState(), "first");
  ExpectHolds(weights_, 100);
  Reopen();
  EXPECT_EQ(engine_->UserState(), "first") << "the restored state is a commit of its own";
  weights_ = Register("w");
  ExpectHolds(weights_, 100);
}

TEST_F(SnapshotTest, ItIsTheLastCommitThatIsKept) {
  Put(weights_, 1);
  Commit("committed");
  Put(weights_, 2);
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  ExpectHolds(weights_, 2);
  ASSERT_TRUE(engine_->Restore("a").ok());
  ExpectHolds(weights_, 1);
}

TEST_F(SnapshotTest, WorkGoesOnAfterARestore) {
  for (int round = 1; round <= 4; ++round) {
    Put(weights_, 10.0F * static_cast<float>(round), round);
    if (round == 1) {
      Commit("1");
      ASSERT_TRUE(engine_->Snapshot("a").ok());
    } else if (round % 2 == 0) {
      Commit(std::to_string(round));
    }
    ASSERT_TRUE(engine_->Restore("a").ok());
    ExpectHolds(weights_, 10);
  }
  Put(weights_, 500);
  Commit("after");
  Reopen();
  weights_ = Register("w");
  EXPECT_EQ(engine_->UserState(), "after");
  ExpectHolds(weights_, 500);
  ASSERT_TRUE(engine_->Restore("a").ok());
  ExpectHolds(weights_, 10);
}

TEST_F(SnapshotTest, TransientTensorsReadAsZerosAfterwards) {
  const TensorId gradient = Register("g", /*transient=*/true);
  Put(weights_, 1);
  Commit("");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  Put(gradient, 7);
  ASSERT_TRUE(engine_->Restore("a").ok());
  ExpectHolds(gradient, 0, /*zeros=*/true);
  Put(gradient, 8);
  ExpectHolds(gradient, 8);
}

TEST_F(SnapshotTest, ATensorThatItLacksReadsAsZerosAndIsCommittedAgain) {
  Put(weights_, 1);
  Commit("");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  const TensorId later = Register("later");
  Put(later, 5);
  Commit("with later");
  ASSERT_TRUE(engine_->Restore("a").ok());
  ExpectHolds(later, 0, /*zeros=*/true);
  Put(later, 6);
  Commit("again");
  Reopen();
  ExpectHolds(Register("later"), 6);
  ExpectHolds(Register("w"), 1);
}

TEST_F(SnapshotTest, ATensorThatItLacksIsInTheNextCommitAsZeros) {
  Put(weights_, 1);
  Commit("");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  TensorSpec spec = engine_->Spec(weights_);
  spec.name = "later";
  int calls = 0;
  const Reader reader = [&calls](uint64_t, std::span<std::byte> out) {
    ++calls;
    std::fill(out.begin(), out.end(), std::byte{1});
    return absl::OkStatus();
  };
  ASSERT_TRUE(engine_->Register(spec, reader).ok());
  Commit("with later");
  ASSERT_TRUE(engine_->Restore("a").ok());
  Reopen();
  calls = 0;
  ASSERT_TRUE(engine_->Register(spec, reader).ok());
  EXPECT_GT(calls, 0) << "the restored commit has no such tensor";
  ASSERT_TRUE(engine_->Restore("a").ok());
  Commit("with zeros");  // registered, and never written since
  Reopen();
  calls = 0;
  const auto later = engine_->Register(spec, reader);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(calls, 0) << "the last commit has the tensor";
  ExpectHolds(*later, 0, /*zeros=*/true);
  ExpectHolds(Register("w"), 1);
}

TEST_F(SnapshotTest, ListsAndDrops) {
  Put(weights_, 1);
  Commit("one");
  ASSERT_TRUE(engine_->Snapshot("first").ok());
  Put(weights_, 2);
  Commit("two");
  ASSERT_TRUE(engine_->Snapshot("second").ok());
  EXPECT_EQ(engine_->Snapshot("second").code(), absl::StatusCode::kAlreadyExists);
  auto snapshots = engine_->Snapshots();
  ASSERT_TRUE(snapshots.ok()) << snapshots.status();
  ASSERT_EQ(snapshots->size(), 2u);
  EXPECT_EQ((*snapshots)[0].label, "first");
  EXPECT_EQ((*snapshots)[0].number, 1u);
  EXPECT_FALSE((*snapshots)[0].time.empty());
  EXPECT_EQ((*snapshots)[1].label, "second");
  ASSERT_TRUE(engine_->Drop("first").ok());
  EXPECT_EQ(engine_->Drop("first").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->Restore("first").code(), absl::StatusCode::kNotFound);
  ExpectHolds(weights_, 2);
  EXPECT_EQ(engine_->Snapshots()->size(), 1u);
}

TEST_F(SnapshotTest, AFailedRestoreChangesNothing) {
  Put(weights_, 1);
  Commit("one");
  Put(weights_, 2);
  EXPECT_EQ(engine_->Restore("none").code(), absl::StatusCode::kNotFound);
  ExpectHolds(weights_, 2);
  EXPECT_EQ(engine_->UserState(), "one");
  Commit("two");
  Reopen();
  ExpectHolds(Register("w"), 2);
}

TEST_F(SnapshotTest, LeasesAreInTheWay) {
  Put(weights_, 1);
  Commit("");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  auto lease = engine_->Acquire(weights_, Access::kRead);
  ASSERT_TRUE(lease.ok());
  for (const absl::Status& status : {engine_->Snapshot("b"), engine_->Restore("a")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("'w'"), absl::string_view::npos) << status;
  }
  lease->Release();
  EXPECT_TRUE(engine_->Snapshot("b").ok());
  EXPECT_TRUE(engine_->Restore("a").ok());
}

TEST_F(SnapshotTest, NeedsACommitAndALabel) {
  EXPECT_EQ(engine_->Snapshot("a").code(), absl::StatusCode::kFailedPrecondition);
  Put(weights_, 1);
  Commit("");
  for (const std::string& label : {std::string(), std::string("a b"), std::string(129, 'x')}) {
    EXPECT_EQ(engine_->Snapshot(label).code(), absl::StatusCode::kInvalidArgument) << label;
  }
  EXPECT_TRUE(engine_->Snapshot(std::string(128, 'x')).ok());
}

TEST_F(SnapshotTest, DeclaredUsesAndTransfersInFlightAreNoObstacle) {
  Put(weights_, 1);
  Commit("");
  ASSERT_TRUE(engine_->Snapshot("a").ok());
  for (int round = 0; round < 20; ++round) {
    std::vector<Use> uses;
    for (uint64_t tile = 0; tile < kTiles; ++tile) uses.push_back({{weights_, tile}});
    Put(weights_, 50, 1 + round % 3);
    ASSERT_TRUE(engine_->Prefetch(uses).ok());
    ASSERT_TRUE(engine_->Evict({weights_, round % kTiles}).ok());
    ASSERT_TRUE(engine_->Restore("a").ok());
    ExpectHolds(weights_, 1);
  }
}

TEST(Snapshot, NeedsAStore) {
  auto engine = Engine::Open({.pinned_bytes = kMiB});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->Snapshot("a").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*engine)->Snapshots().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*engine)->Restore("a").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*engine)->Drop("a").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SnapshotTest, AStoreKeepsItsIdAndCountsItsCommits) {
  const std::string id = engine_->StoreId();
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(engine_->CommitNumber(), 0u);
  ASSERT_TRUE(engine_->Commit("one").ok());
  ASSERT_TRUE(engine_->Snapshot("kept").ok());
  ASSERT_TRUE(engine_->Commit("two").ok());
  EXPECT_EQ(engine_->CommitNumber(), 2u);
  ASSERT_TRUE(engine_->Restore("kept").ok());
  EXPECT_EQ(engine_->CommitNumber(), 3u);
  Reopen();
  EXPECT_EQ(engine_->StoreId(), id);
  EXPECT_EQ(engine_->CommitNumber(), 3u);
}

}  // namespace
}  // namespace spillway
