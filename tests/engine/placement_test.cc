// SPDX-License-Identifier: Apache-2.0
//
// Placement of roles, through the public engine. The bytes that a step moves are known exactly, by
// plan and on demand, and a placement that does not fit is refused with an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "spillway/engine.h"
#include "tests/engine/policies.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTiles = 8;
constexpr uint64_t kTileBytes = 64 * kKiB;
constexpr uint64_t kAll = kTiles * kTileBytes;

Placement Place(Role role, Tier tier) {
  Placement placement;
  placement[static_cast<size_t>(role)] = tier;
  return placement;
}

class Placed : public testing::TestWithParam<engine::MaybePolicy> {
 protected:
  EngineOptions Options(const Placement& placement) const {
    EngineOptions options;
    options.store = {folder_ / "store"};
    options.mode = OpenMode::kScratch;
    options.device_bytes = kMiB;
    options.pinned_bytes = pinned_bytes_;
    options.page_bytes = 16 * kKiB;
    options.placement = placement;
    return options;
  }

  void Open(const Placement& placement) {
    auto engine = engine::OpenWith(GetParam(), Options(placement));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  TensorId Register(Role role, uint64_t tiles = kTiles, bool transient = false,
                    uint64_t tile_bytes = kTileBytes) {
    const auto id = engine_->Register(
        {.name = std::string(Name(role)),
         .shape = {static_cast<int64_t>(tiles), static_cast<int64_t>(tile_bytes / 4)},
         .role = role,
         .tile_rows = 1,
         .transient = transient});
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }

  // Leases each tile in turn, checks that it holds `before` and writes `after` if the access
  // writes.
  void Pass(TensorId tensor, Tier tier, Access access, uint32_t before, uint32_t after) {
    for (uint64_t tile = 0; tile < engine_->Spec(tensor).num_tiles(); ++tile) {
      const TileRef ref{tensor, tile};
      auto lease =
          tier == Tier::kDevice ? engine_->Acquire(ref, access) : engine_->AcquireHost(ref, access);
      ASSERT_TRUE(lease.ok()) << lease.status();
      for (uint32_t& value : lease->as<uint32_t>()) {
        if (access != Access::kDiscard) {
          ASSERT_EQ(value, before);
        }
        if (Writes(access)) value = after;
      }
    }
  }

  // Waits until the condition holds, because transfers go on after the call that caused them. If it
  // never does, the test times out.
  template <typename Condition>
  void Await(const Condition& condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  template <typename Step>
  void Repeat(const Step& step) {
    for (uint32_t i = 0; i < kSteps; ++i) {
      step(i);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_TRUE(engine_->EndStep().ok());
      ASSERT_TRUE(engine_->WaitForPlan().ok());
    }
    EXPECT_EQ(engine_->Stats().plan.deviations, 0u);
    if (!GetParam()) return;
    EXPECT_EQ(engine_->Stats().plan.not_planned, "");
    EXPECT_GT(engine_->Stats().plan.steps, 0u);
  }

  Occupancy Room(Role role, Tier tier) const {
    return engine_->Stats().role_tiers[static_cast<size_t>(role)][static_cast<size_t>(tier)];
  }

  static constexpr uint32_t kSteps = 8;
  uint64_t pinned_bytes_ = kMiB;
  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
};

// There is room for twice all of it, but it is read from NVMe for each use.
TEST_P(Placed, OnNvmeEachUseReadsAndWritesEveryByte) {
  Open(Place(Role::kMoment, Tier::kNvme));
  const TensorId moment = Register(Role::kMoment);
  Repeat([&](uint32_t i) { Pass(moment, Tier::kDevice, Access::kReadWrite, i, i + 1); });
  const EngineStats stats = engine_->Stats();
  if (GetParam()) {
    EXPECT_EQ(stats.plan.nvme.read_bytes, kAll);
    EXPECT_EQ(stats.plan.nvme.written_bytes, kAll);
    EXPECT_EQ(stats.plan.pinned.read_bytes, kAll);
    EXPECT_EQ(stats.plan.pinned.written_bytes, kAll);
    EXPECT_EQ(stats.plan.planned_bytes, 4 * kAll);
    return;
  }
  Await([&] { return engine_->Stats().nvme.written_bytes == kSteps * kAll; });
  EXPECT_EQ(engine_->Stats().nvme.read_bytes, (kSteps - 1) * kAll);  // the tiles start as zeros
  EXPECT_EQ(engine_->Stats().pinned.read_bytes, kSteps * kAll);
  EXPECT_EQ(engine_->Stats().pinned.written_bytes, kSteps * kAll);
  const Traffic moments = engine_->Stats().role_nvme[static_cast<size_t>(Role::kMoment)];
  EXPECT_EQ(moments.read_bytes, (kSteps - 1) * kAll);
  EXPECT_EQ(moments.written_bytes, kSteps * kAll);
  Await([&] { return Room(Role::kMoment, Tier::kPinned).now_bytes == 0; });
  EXPECT_EQ(Room(Role::kMoment, Tier::kDevice).now_bytes, 0u);
}

TEST_P(Placed, RolesTogetherAreAllThatPassedToAndFromNvme) {
  Open({});
  const TensorId moment = Register(Role::kMoment, 2 * kTiles);
  const TensorId weight = Register(Role::kParameter, 2 * kTiles);
  Repeat([&](uint32_t i) {
    Pass(moment, Tier::kPinned, Access::kReadWrite, i, i + 1);
    Pass(weight, Tier::kPinned, Access::kReadWrite, i, i + 1);
  });
  const EngineStats stats = engine_->Stats();
  Traffic sum;
  for (const Traffic& role : stats.role_nvme) {
    sum.read_bytes += role.read_bytes;
    sum.written_bytes += role.written_bytes;
  }
  EXPECT_EQ(sum.read_bytes, stats.nvme.read_bytes);
  EXPECT_EQ(sum.written_bytes, stats.nvme.written_bytes);
  EXPECT_GT(stats.role_nvme[static_cast<size_t>(Role::kMoment)].read_bytes, 0u);
  EXPECT_GT(stats.role_nvme[static_cast<size_t>(Role::kParameter)].read_bytes, 0u);
}

// A discarded tile rests nowhere. Before that, it goes to NVMe between its writer and its reader.
TEST_P(Placed, OnNvmeAGradientIsWrittenAndReadOnce) {
  Open(Place(Role::kGradient, Tier::kNvme));
  const TensorId gradient = Register(Role::kGradient, kTiles, /*transient=*/true);
  Repeat([&](uint32_t i) {
    Pass(gradient, Tier::kDevice, Access::kDiscard, 0, i);
    Pass(gradient, Tier::kPinned, Access::kRead, i, 0);
    for (uint64_t tile = 0; tile < kTiles; ++tile)
      ASSERT_TRUE(engine_->Discard({gradient, tile}).ok());
  });
  const EngineStats stats = engine_->Stats();
  if (GetParam()) {
    EXPECT_EQ(stats.plan.nvme.read_bytes, kAll);
    EXPECT_EQ(stats.plan.nvme.written_bytes, kAll);
    EXPECT_EQ(stats.plan.pinned.read_bytes, 0u);
    EXPECT_EQ(stats.plan.pinned.written_bytes, kAll);
    return;
  }
  EXPECT_EQ(stats.nvme.read_bytes, kSteps * kAll);
  EXPECT_EQ(stats.nvme.written_bytes, kSteps * kAll);
  EXPECT_EQ(stats.pinned.written_bytes, kSteps * kAll);
}

// Other tiles pass through NVMe. Tiles that rest in pinned memory are written to NVMe only by a
// commit.
TEST_P(Placed, InPinnedMemoryNothingReachesNvmeButByACommit) {
  Open(Place(Role::kMoment, Tier::kPinned));
  const TensorId moment = Register(Role::kMoment), other = Register(Role::kParameter, 3 * kTiles);
  Repeat([&](uint32_t i) {
    Pass(moment, Tier::kDevice, Access::kReadWrite, i, i + 1);
    Pass(other, Tier::kPinned, Access::kReadWrite, i, i + 1);
    Pass(moment, Tier::kPinned, Access::kRead, i + 1, 0);
  });
  EXPECT_EQ(Room(Role::kMoment, Tier::kNvme).peak_bytes, 0u);
  EXPECT_EQ(Room(Role::kMoment, Tier::kPinned).now_bytes, kAll);
  EXPECT_GT(engine_->Stats().nvme.written_bytes, 0u);
  ASSERT_TRUE(engine_->Commit("").ok());
  EXPECT_EQ(Room(Role::kMoment, Tier::kNvme).peak_bytes, kAll);
  const uint64_t read = engine_->Stats().nvme.read_bytes;
  Pass(moment, Tier::kPinned, Access::kRead, kSteps, 0);
  if (!GetParam()) {
    EXPECT_EQ(engine_->Stats().nvme.read_bytes, read);
  }
}

TEST_P(Placed, InPinnedMemoryNothingStaysOnTheDevice) {
  Open(Place(Role::kMoment, Tier::kPinned));
  const TensorId moment = Register(Role::kMoment);
  Repeat([&](uint32_t i) { Pass(moment, Tier::kDevice, Access::kReadWrite, i, i + 1); });
  Await([&] { return engine_->Stats().pinned.written_bytes == kSteps * kAll; });
  // Bytes that are on the device now were copied in for the next step.
  Await([&] {
    const EngineStats stats = engine_->Stats();
    const auto& room = stats.role_tiers[static_cast<size_t>(Role::kMoment)];
    return stats.pinned.read_bytes == kSteps * kAll + room[0].now_bytes;
  });
  EXPECT_EQ(engine_->Stats().nvme.written_bytes, 0u);
}

// The CPU writes weights and the device reads them twice: one copy in, none out.
TEST_P(Placed, OnTheDeviceWhatTheCpuWroteComesOnceAndStays) {
  Open(Place(Role::kParameter, Tier::kDevice));
  const TensorId weight = Register(Role::kParameter), other = Register(Role::kMoment, 3 * kTiles);
  Repeat([&](uint32_t i) {
    Pass(weight, Tier::kPinned, Access::kDiscard, 0, i);
    Pass(weight, Tier::kDevice, Access::kRead, i, 0);
    Pass(other, Tier::kPinned, Access::kReadWrite, i, i + 1);
    Pass(weight, Tier::kDevice, Access::kRead, i, 0);
  });
  EXPECT_EQ(Room(Role::kParameter, Tier::kNvme).peak_bytes, 0u);
  EXPECT_EQ(Room(Role::kParameter, Tier::kDevice).now_bytes, kAll);
  const EngineStats stats = engine_->Stats();
  if (GetParam()) {
    EXPECT_EQ(stats.plan.pinned.read_bytes, kAll);
    EXPECT_EQ(stats.plan.pinned.written_bytes, 0u);
    return;
  }
  EXPECT_EQ(stats.pinned.read_bytes, kSteps * kAll);
  EXPECT_EQ(stats.pinned.written_bytes, 0u);
}

// The budget holds the tiles that stay and one tile that does not. Tiles of the second kind are all
// over the arena when the first of those that stay comes.
TEST_P(Placed, WhatStaysLeavesNoGapsThoughOthersAreLeasedMeanwhile) {
  pinned_bytes_ = kAll + kTileBytes / 2;
  Open(Place(Role::kMoment, Tier::kPinned));
  const TensorId gradient = Register(Role::kGradient, kTiles, false, kTileBytes / 2);
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 0, 1);
  const TensorId moment = Register(Role::kMoment);
  Repeat([&](uint32_t i) {
    for (uint64_t tile = 0; tile < kTiles; ++tile) {
      const auto held = engine_->AcquireHost({gradient, tile}, Access::kRead);
      ASSERT_TRUE(held.ok()) << held.status();
      EXPECT_EQ(held->as<uint32_t>()[0], 1u);
      const auto lease = engine_->AcquireHost({moment, tile}, Access::kReadWrite);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(lease->as<uint32_t>()[0]++, i);
    }
  });
}

TEST_P(Placed, WhatCannotRestThereIsRefusedWithItsFigures) {
  Open(Place(Role::kMoment, Tier::kPinned));
  Register(Role::kParameter, 4);
  const auto refused = engine_->Register(
      {.name = "m", .shape = {16, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = 1});
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  const std::string message(refused.status().message());
  for (const char* part :
       {"tensor 'm'", "pinned memory", "moment 1.0 MiB", "64.0 KiB", "pinned_bytes is 1.0 MiB",
        "raise it to at least 1.1 MiB (1114112 bytes)"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  Register(Role::kMoment, 15);  // fits beside the tile that does not stay

  EngineOptions options = Options(Place(Role::kActivation, Tier::kNvme));
  options.store.clear();
  const absl::Status no_store = Engine::Open(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(no_store)) << no_store;
  EXPECT_THAT(std::string(no_store.message()), HasSubstr("activation"));
}

TEST_P(Placed, TheRoomOfATensorThatGoesIsGivenBack) {
  Open(Place(Role::kMoment, Tier::kPinned));  // pinned memory has room for 16 tiles
  const auto moment = [this](const char* name, int64_t tiles) {
    return engine_->Register(
        {.name = name, .shape = {tiles, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = 1});
  };
  const TensorId passing = Register(Role::kParameter, 1, false, 4 * kTileBytes);
  const auto first = moment("first", 12);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsResourceExhausted(moment("second", 12).status()));
  ASSERT_TRUE(engine_->Unregister(*first).ok());
  EXPECT_TRUE(moment("second", 12).ok());
  // A tile that does not stay keeps no room either, once its tensor is unregistered.
  EXPECT_TRUE(absl::IsResourceExhausted(moment("third", 4).status()));
  ASSERT_TRUE(engine_->Unregister(passing).ok());
  EXPECT_TRUE(moment("third", 4).ok());
}

// The frames of a tensor that goes are free for tiles that stay and for tiles that pass by.
TEST_P(Placed, TheFramesOfATensorThatGoesAreFree) {
  Open(Place(Role::kMoment, Tier::kPinned));  // pinned memory has room for 16 tiles
  const auto moment = [this](const char* name) {
    return *engine_->Register(
        {.name = name, .shape = {12, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = 1});
  };
  const TensorId passing = Register(Role::kParameter, 2, false, 4 * kTileBytes);
  const auto lease = [this](TensorId tensor, uint64_t tiles) {
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      const auto held = engine_->AcquireHost({tensor, tile}, Access::kReadWrite);
      ASSERT_TRUE(held.ok()) << held.status();
    }
  };
  for (const char* name : {"first", "second", "third"}) {
    SCOPED_TRACE(name);
    const TensorId id = moment(name);
    for (uint32_t step = 0; step < 3; ++step) {
      lease(id, 12);
      lease(passing, 2);
      ASSERT_TRUE(engine_->EndStep().ok());
      ASSERT_TRUE(engine_->WaitForPlan().ok());
    }
    EXPECT_EQ(Room(Role::kMoment, Tier::kPinned).now_bytes, 12 * kTileBytes);
    ASSERT_TRUE(engine_->Unregister(id).ok());
    EXPECT_EQ(Room(Role::kMoment, Tier::kPinned).now_bytes, 0u);
  }
}

// Small tiles are leased before, between and after those that stay. Then a tile is leased that
// needs all the room beside them.
TEST_P(Placed, WhatPassesByLeavesTheRoomBesideInOnePiece) {
  EngineOptions options = Options(Place(Role::kMoment, Tier::kPinned));
  options.pinned_bytes = kAll + 2 * kTileBytes;
  engine_ = *Engine::Open(options);
  const auto small = engine_->Register({.name = "small", .shape = {64, 1024}, .tile_rows = 1});
  const auto large = engine_->Register({.name = "large", .shape = {1, kTileBytes / 2}});
  ASSERT_TRUE(small.ok() && large.ok());
  const TensorId moment = Register(Role::kMoment);
  for (uint64_t tile = 0; tile < kTiles; ++tile) {
    const auto passing = engine_->AcquireHost({*small, tile}, Access::kReadWrite);
    ASSERT_TRUE(passing.ok()) << passing.status();
    const auto staying = engine_->AcquireHost({moment, tile}, Access::kReadWrite);
    ASSERT_TRUE(staying.ok()) << staying.status();
  }
  const auto lease = engine_->AcquireHost({*large, 0}, Access::kReadWrite);
  EXPECT_TRUE(lease.ok()) << lease.status();
}

// A held lease is in the way of the last tile that stays, whose frame comes to lie above the
// others. The room that the lease leaves behind is the only room beside them.
TEST_P(Placed, RoomBelowAFrameThatHadToLieElsewhereIsUsed) {
  pinned_bytes_ = (kTiles + 1) * kTileBytes;
  Open(Place(Role::kMoment, Tier::kPinned));
  const TensorId gradient = Register(Role::kGradient, 2 * kTiles);
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 0, 1);
  TensorId moment;
  {
    const auto held = engine_->AcquireHost({gradient, 2 * kTiles - 1}, Access::kReadWrite);
    ASSERT_TRUE(held.ok()) << held.status();
    moment = Register(Role::kMoment);
    Pass(moment, Tier::kPinned, Access::kReadWrite, 0, 1);
  }
  Pass(gradient, Tier::kDevice, Access::kReadWrite, 1, 2);
  ASSERT_TRUE(engine_->Commit("1").ok());
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 2, 3);
  Pass(moment, Tier::kPinned, Access::kReadWrite, 1, 2);
  ASSERT_TRUE(engine_->Commit("2").ok());
}

// The frame of a larger tile does not fit where the frame of a tensor that is gone was. Other tiles
// have no other room, also while a tile that stays does not have its frame yet.
TEST_P(Placed, RoomBetweenFramesThatStayIsUsed) {
  pinned_bytes_ = 8 * kTileBytes;
  Open(Place(Role::kMoment, Tier::kPinned));
  const auto moment = [this](const char* name, int64_t rows) {
    const auto id = engine_->Register(
        {.name = name, .shape = {rows, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = rows});
    EXPECT_TRUE(id.ok()) << id.status();
    Pass(*id, Tier::kPinned, Access::kReadWrite, 0, 1);
    return *id;
  };
  const TensorId gradient = Register(Role::kGradient, 3);
  const TensorId goes = moment("goes", 2);
  const TensorId stays = moment("stays", 2);
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 0, 1);
  ASSERT_TRUE(engine_->Unregister(goes).ok());
  const TensorId large = moment("large", 4);
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 1, 2);
  const auto waits =
      engine_->Register({.name = "waits", .shape = {1, kTileBytes / 4}, .role = Role::kMoment});
  ASSERT_TRUE(waits.ok()) << waits.status();
  Repeat([&](uint32_t i) {
    Pass(gradient, Tier::kDevice, Access::kReadWrite, 2 * i + 2, 2 * i + 3);
    Pass(gradient, Tier::kPinned, Access::kReadWrite, 2 * i + 3, 2 * i + 4);
    Pass(stays, Tier::kPinned, Access::kReadWrite, i + 1, i + 2);
    Pass(large, Tier::kPinned, Access::kReadWrite, i + 1, i + 2);
  });
  Pass(*waits, Tier::kPinned, Access::kReadWrite, 0, 1);
  Pass(gradient, Tier::kPinned, Access::kRead, 18, 18);
}

TEST_P(Placed, WhatRestsInMemoryHasItsFramesOnceItIsRegistered) {
  Placement placement = Place(Role::kMoment, Tier::kPinned);
  placement[static_cast<size_t>(Role::kParameter)] = Tier::kDevice;
  Open(placement);
  Register(Role::kMoment);
  EXPECT_EQ(Room(Role::kMoment, Tier::kPinned).now_bytes, kAll);
  Register(Role::kParameter);
  EXPECT_EQ(Room(Role::kParameter, Tier::kDevice).now_bytes, kAll);
  EXPECT_EQ(Room(Role::kParameter, Tier::kPinned).now_bytes, 0u);
}

// Modified tiles fill pinned memory. Those without a lease make room, and lose nothing.
TEST_P(Placed, TilesInTheWayOfANewTensorLeaveUnlessTheyAreLeased) {
  pinned_bytes_ = 4 * kTileBytes;
  Open(Place(Role::kMoment, Tier::kPinned));
  const TensorId gradient = Register(Role::kGradient, 4);
  Pass(gradient, Tier::kPinned, Access::kReadWrite, 0, 7);
  const auto moment = [this] {
    return engine_->Register(
        {.name = "m", .shape = {2, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = 1});
  };
  {
    const auto first = engine_->AcquireHost({gradient, 1}, Access::kRead);
    const auto second = engine_->AcquireHost({gradient, 2}, Access::kRead);
    const auto third = engine_->AcquireHost({gradient, 3}, Access::kRead);
    ASSERT_TRUE(first.ok() && second.ok() && third.ok());
    const absl::Status refused = moment().status();
    ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    for (const char* part : {"tensor 'm' tile 1 needs 64.0 KiB", "leases in the way",
                             "tensor 'gradient' tile 2", "release leases or raise pinned_bytes"}) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
    }
    EXPECT_TRUE(absl::IsNotFound(engine_->Find("m").status()));
    EXPECT_EQ(Room(Role::kMoment, Tier::kPinned).now_bytes, 0u);
  }
  const auto made = moment();
  ASSERT_TRUE(made.ok()) << made.status();
  Pass(*made, Tier::kPinned, Access::kReadWrite, 0, 1);
  Pass(gradient, Tier::kPinned, Access::kRead, 7, 0);
}

// A tensor of the last commit that finds no room is not registered, and stays in the commits.
TEST_P(Placed, WhatTheStoreHasStaysThoughLeasesAreInItsWay) {
  pinned_bytes_ = 4 * kTileBytes;
  const Placement placement = Place(Role::kMoment, Tier::kPinned);
  EngineOptions options = Options(placement);
  options.mode = OpenMode::kOpenOrCreate;
  const auto open = [&] {
    engine_.reset();
    auto engine = engine::OpenWith(GetParam(), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  };
  const auto fill = [](uint64_t, std::span<std::byte>) {
    return absl::InternalError("the store has the bytes");
  };
  const auto moment = [&] {
    return engine_->Register(
        {.name = "moment", .shape = {2, kTileBytes / 4}, .role = Role::kMoment, .tile_rows = 1},
        fill);
  };
  open();
  ASSERT_FALSE(HasFatalFailure());
  Pass(Register(Role::kMoment, 2), Tier::kPinned, Access::kReadWrite, 0, 9);
  ASSERT_TRUE(engine_->Commit("moment").ok());
  ASSERT_TRUE(engine_->Snapshot("moment").ok());
  const auto refuse = [&] {
    const TensorId gradient = Register(Role::kGradient, 3);
    const auto first = engine_->AcquireHost({gradient, 0}, Access::kRead);
    const auto second = engine_->AcquireHost({gradient, 1}, Access::kRead);
    const auto third = engine_->AcquireHost({gradient, 2}, Access::kRead);
    ASSERT_TRUE(first.ok() && second.ok() && third.ok());
    const absl::Status refused = moment().status();
    ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  };
  const auto check = [&] {
    const auto again = moment();
    ASSERT_TRUE(again.ok()) << again.status();
    Pass(*again, Tier::kPinned, Access::kRead, 9, 9);
  };
  open();  // registered again at once
  refuse();
  check();
  ASSERT_FALSE(HasFatalFailure());
  open();  // after a commit
  refuse();
  ASSERT_TRUE(engine_->Commit("refused").ok());
  check();
  ASSERT_FALSE(HasFatalFailure());
  open();  // after the snapshot was restored
  refuse();
  ASSERT_TRUE(engine_->Restore("moment").ok());
  EXPECT_EQ(Room(Role::kMoment, Tier::kNvme).now_bytes, 0u);
  check();
  EXPECT_EQ(Room(Role::kMoment, Tier::kNvme).now_bytes, 2 * kTileBytes);
  ASSERT_TRUE(engine_->Commit("restored").ok());
  ASSERT_FALSE(HasFatalFailure());
  open();
  check();
}

INSTANTIATE_TEST_SUITE_P(Policies, Placed,
                         testing::Values(plan::Policy::kPlanned, plan::Policy::kLru,
                                         plan::Policy::kNone, engine::kOnDemand),
                         [](const auto& policy) { return engine::NameOf(policy.param); });

}  // namespace
}  // namespace spillway
