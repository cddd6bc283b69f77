// SPDX-License-Identifier: Apache-2.0
//
// Tests tensors that are unregistered, through the public engine: what becomes invalid at once,
// what the next commit makes durable, and what a snapshot retains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "spillway/engine.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

using testing::HasSubstr;

constexpr int64_t kTiles = 8;
constexpr int64_t kTileValues = 3000;  // 12,000 bytes: not a whole number of pages

class UnregisterTest : public testing::Test {
 protected:
  UnregisterTest() { engine_ = Open(); }

  // Opens the engine with room for half of a tensor in each tier, so that some tiles are on NVMe
  // and some are in flight.
  std::unique_ptr<Engine> Open() {
    auto engine = Engine::Open({.store = {folder_ / "s"},
                                .mode = OpenMode::kOpenOrCreate,
                                .device_bytes = 4 * 12 * kKiB,
                                .pinned_bytes = 4 * 12 * kKiB,
                                .page_bytes = 8 * kKiB});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  void Reopen() {
    engine_.reset();
    engine_ = Open();
  }
  static TensorSpec Spec(const std::string& name, int64_t tiles = kTiles) {
    return {.name = name, .shape = {tiles, kTileValues}, .tile_rows = 1};
  }
  TensorId Register(const std::string& name) {
    auto id = engine_->Register(Spec(name));
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  void Put(TensorId id, float value) {
    for (uint64_t tile = 0; tile < engine_->Spec(id).num_tiles(); ++tile) {
      auto lease = engine_->Acquire({id, tile}, Access::kDiscard);
      ASSERT_TRUE(lease.ok()) << lease.status();
      for (float& out : lease->as<float>()) out = value + static_cast<float>(tile);
    }
  }
  void ExpectHolds(TensorId id, float value) {
    for (uint64_t tile = 0; tile < engine_->Spec(id).num_tiles(); ++tile) {
      auto lease = engine_->Acquire({id, tile}, Access::kRead);
      ASSERT_TRUE(lease.ok()) << lease.status();
      for (const float got : lease->as<float>())
        ASSERT_EQ(got, value + static_cast<float>(tile)) << "tile " << tile;
    }
  }
  void Commit(const std::string& state) {
    const absl::Status status = engine_->Commit(state);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Whether the last commit has a tensor of this name. If it has, the reader is not called.
  bool IsStored(const std::string& name) {
    bool is_asked = false;
    const auto id = engine_->Register(Spec(name), [&](uint64_t, std::span<std::byte> out) {
      is_asked = true;
      std::fill(out.begin(), out.end(), std::byte{0});
      return absl::OkStatus();
    });
    EXPECT_TRUE(id.ok()) << id.status();
    return !is_asked;
  }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(UnregisterTest, TheNextCommitDoesNotHaveIt) {
  const TensorId kept = Register("kept"), gone = Register("gone");
  Put(kept, 100);
  Put(gone, 200);
  Commit("both");
  ASSERT_TRUE(engine_->Unregister(gone).ok());
  Commit("one");
  ExpectHolds(kept, 100);
  Reopen();
  ExpectHolds(Register("kept"), 100);
  EXPECT_EQ(engine_->Stats().tiers[static_cast<size_t>(Tier::kNvme)].now_bytes,
            kTiles * 12 * kKiB);  // extents of one tensor
  EXPECT_FALSE(IsStored("gone"));
}

TEST_F(UnregisterTest, UntilACommitTheLastOneHasIt) {
  const TensorId gone = Register("gone");
  Put(gone, 200);
  Commit("first");
  Put(gone, 300);
  ASSERT_TRUE(engine_->Unregister(gone).ok());
  Reopen();
  ExpectHolds(Register("gone"), 200);
}

TEST_F(UnregisterTest, ItsIdIsVoidAndItsNameIsFree) {
  const TensorId gone = Register("name");
  Put(gone, 200);
  Commit("first");
  ASSERT_TRUE(engine_->Unregister(gone).ok());
  EXPECT_TRUE(absl::IsNotFound(engine_->Find("name").status()));
  EXPECT_TRUE(absl::IsNotFound(engine_->Acquire({gone, 0}, Access::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(engine_->AcquireHost({gone, 0}, Access::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(engine_->Evict({gone, 0})));
  EXPECT_TRUE(absl::IsNotFound(engine_->Unregister(gone)));
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Unregister(TensorId{77})));
  // Another tensor of the same name and another shape has its own bytes.
  const auto again = engine_->Register(Spec("name", 3));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(*again, gone);
  Put(*again, 500);
  Commit("second");
  ExpectHolds(*again, 500);
  Reopen();
  const auto found = engine_->Register(Spec("name", 3));
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectHolds(*found, 500);
}

TEST_F(UnregisterTest, IsRefusedWhileItIsLeased) {
  const TensorId gone = Register("gone");
  Put(gone, 200);
  {
    const auto lease = engine_->Acquire({gone, 5}, Access::kRead);
    ASSERT_TRUE(lease.ok());
    const absl::Status refused = engine_->Unregister(gone);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("tensor 'gone' tile 5 is leased"));
  }
  ExpectHolds(gone, 200);
  EXPECT_TRUE(engine_->Unregister(gone).ok());
}

TEST_F(UnregisterTest, LeavesTheLeasesOfOthersAlone) {
  const TensorId kept = Register("kept"), gone = Register("gone");
  Put(kept, 100);
  Put(gone, 200);
  const auto lease = engine_->Acquire({kept, 3}, Access::kReadWrite);
  ASSERT_TRUE(lease.ok());
  const absl::Status status = engine_->Unregister(gone);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(lease->as<float>()[0], 103);
}

TEST_F(UnregisterTest, AReaderThatFailsLeavesNothingBehind) {
  int asked = 0;
  const auto fails = [&](uint64_t, std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{1});
    return ++asked < 3 ? absl::OkStatus() : absl::OutOfRangeError("the file is short");
  };
  const auto id = engine_->Register(Spec("short"), fails);
  EXPECT_TRUE(absl::IsOutOfRange(id.status())) << id.status();
  EXPECT_TRUE(absl::IsNotFound(engine_->Find("short").status()));
  Commit("without it");
  EXPECT_FALSE(IsStored("short"));
}

// The store has the tensor already while the reader runs. It is not removed under Register.
TEST_F(UnregisterTest, ANameThatIsBeingRegisteredIsNotForgotten) {
  absl::Status forgotten;
  const auto id = engine_->Register(Spec("a"), [&](uint64_t, std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{1});
    forgotten = engine_->ForgetName("a");
    return absl::OkStatus();
  });
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(forgotten.code(), absl::StatusCode::kFailedPrecondition) << forgotten;
  EXPECT_THAT(std::string(forgotten.message()), HasSubstr("'a' is being registered"));
  Commit("a");
  Reopen();
  EXPECT_TRUE(engine_->ForgetName("a").ok());
  EXPECT_EQ(engine_->ForgetName("a").code(), absl::StatusCode::kNotFound);
}

TEST_F(UnregisterTest, ASnapshotKeepsIt) {
  const TensorId gone = Register("gone");
  Put(gone, 200);
  Commit("first");
  ASSERT_TRUE(engine_->Snapshot("then").ok());
  ASSERT_TRUE(engine_->Unregister(gone).ok());
  Put(Register("kept"), 100);
  Commit("second");
  Reopen();
  const absl::Status restored = engine_->Restore("then");
  ASSERT_TRUE(restored.ok()) << restored;
  ExpectHolds(Register("gone"), 200);
  ASSERT_TRUE(engine_->Drop("then").ok());
  ExpectHolds(*engine_->Find("gone"), 200);
}

TEST_F(UnregisterTest, WhatWasDeclaredOfItIsForgotten) {
  const TensorId kept = Register("kept"), gone = Register("gone");
  Put(kept, 100);
  Put(gone, 200);
  std::vector<Use> uses;
  for (uint64_t tile = 0; tile < kTiles; ++tile) {
    uses.push_back({{gone, tile}, Tier::kDevice, Access::kRead});
    uses.push_back({{kept, tile}, Tier::kDevice, Access::kRead});
  }
  ASSERT_TRUE(engine_->Prefetch(uses).ok());
  ASSERT_TRUE(engine_->Unregister(gone).ok());
  ExpectHolds(kept, 100);
  EXPECT_TRUE(absl::IsNotFound(engine_->Prefetch(uses)));
  ASSERT_TRUE(engine_->EndStep().ok());
  Commit("one");
}

TEST_F(UnregisterTest, WithoutAStoreItsMemoryIsFree) {
  auto engine = Engine::Open({.device_bytes = 4 * 12 * kKiB, .pinned_bytes = 8 * 12 * kKiB});
  ASSERT_TRUE(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
  for (int round = 0; round < 5; ++round) {  // the memory holds only one of them
    const TensorId id = Register("one");
    Put(id, static_cast<float>(round));
    ExpectHolds(id, static_cast<float>(round));
    ASSERT_TRUE(engine_->Unregister(id).ok());
  }
}

}  // namespace
}  // namespace spillway
