// SPDX-License-Identifier: Apache-2.0
//
// The mover over a disk that fails. No error and no value is lost, and nothing is committed over a
// write that failed.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "tests/engine/faulty_machine.h"
#include "tests/engine/open_mover.h"
#include "tests/io/io_uring_here.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

using io::Fault;

// Tiles whose elements have the value that was written last. Pinned memory has room for four of
// them, the device for two.
class MoverFaultTest : public testing::TestWithParam<IoKind> {
 protected:
  static constexpr uint64_t kTileBytes = 40000;  // three pages of 16 KiB, the last one short
  static constexpr TileIndex kNumTiles = 12;
  static constexpr uint64_t kPinnedBytes = 4 * 40960;  // room for four tiles

  void SetUp() override {
    if (!io::CanRun(GetParam())) GTEST_SKIP() << io::kNoIoUring;
    auto faulty = io::FaultyIoEngine::Create(1, [&](io::ResultHook hook) {
      return io::MakeIoEngine(GetParam(), {.result_hook = std::move(hook)}, folder_.path());
    });
    ASSERT_TRUE(faulty.ok()) << faulty.status();
    faulty_ = faulty->get();
    mover_ = *OpenMover({folder_ / "s"}, *tiers::MakeDeviceRuntime(Device::Host()),
                        *std::move(faulty), 2 * 40960, kPinnedBytes);
    io::TensorIndex tensor = 0;
    mover_->transfers().RunWithStore(
        [&](io::Store* s) { tensor = *s->AddTensor({"w", "{}", 3 * kNumTiles}, false); });
    for (uint64_t tile = 0; tile < kNumTiles; ++tile) {
      mover_->AddTile(kTileBytes, Role::kParameter, false, false, {tensor, tile * 3});
    }
    values_.resize(kNumTiles, 0);
  }

  // Writes a new value over the whole tile.
  absl::Status Put(TileIndex tile, Tier tier = Tier::kPinned) {
    const auto lease = mover_->Acquire(tile, tier, Access::kReadWrite, nullptr);
    if (!lease.ok()) return lease.status();
    std::fill_n(reinterpret_cast<uint32_t*>(lease->data), kTileBytes / 4, ++values_[tile]);
    mover_->EndLease(tile, tier, Access::kReadWrite, nullptr);
    return absl::OkStatus();
  }

  // Reads the tile and compares every element with the last value written.
  absl::Status Check(TileIndex tile, Tier tier = Tier::kPinned) {
    const auto lease = mover_->Acquire(tile, tier, Access::kRead, nullptr);
    if (!lease.ok()) return lease.status();
    const auto* elements = reinterpret_cast<const uint32_t*>(lease->data);
    const bool same = std::all_of(elements, elements + kTileBytes / 4,
                                  [&](uint32_t e) { return e == values_[tile]; });
    mover_->EndLease(tile, tier, Access::kRead, nullptr);
    EXPECT_TRUE(same) << "tile " << tile;
    return absl::OkStatus();
  }

  void PutAll() {
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) ASSERT_TRUE(Put(tile).ok());
  }
  void CheckAll(Tier tier = Tier::kPinned) {
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
      const absl::Status status = Check(tile, tier);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  // Flushes until the writes that may still fail have ended and their errors have been reported.
  void Settle() {
    absl::Status status = FlushAll(*mover_);
    for (int attempt = 0; attempt < 5 && !status.ok(); ++attempt) status = FlushAll(*mover_);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Writes every tile to NVMe. Pinned memory then holds the last tiles.
  void StoreAll() {
    PutAll();
    ASSERT_TRUE(FlushAll(*mover_).ok());
    CheckAll();
  }

  test::TempFolder folder_;
  io::FaultyIoEngine* faulty_ = nullptr;
  std::unique_ptr<Mover> mover_;
  std::vector<uint32_t> values_;
};

TEST_P(MoverFaultTest, AFlippedBitOnTheWayIsReadAgain) {
  StoreAll();
  faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead});
  EXPECT_TRUE(Check(0).ok());
  EXPECT_EQ(faulty_->faults_met(), 1u);
}

TEST_P(MoverFaultTest, AFlippedBitThatStaysIsDataLossWithItsPlace) {
  StoreAll();
  faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead, .count = 100});
  const absl::Status status = Check(0);
  ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  for (const char* part : {"tile 0", "page ", "offset ", folder_.path().c_str()}) {
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << part << " in: " << status;
  }
  faulty_->Clear();
  CheckAll();
}

TEST_P(MoverFaultTest, AFlippedBitOnTheWayToTheDeviceIsReadAgain) {
  StoreAll();
  faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead});
  CheckAll(Tier::kDevice);
  EXPECT_EQ(faulty_->faults_met(), 1u);
}

TEST_P(MoverFaultTest, AFlippedBitThatStaysFailsTheLeaseOnTheDevice) {
  StoreAll();
  tiers::DeviceRuntime& runtime = mover_->transfers().runtime();
  const auto stream = runtime.CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (const StreamId on : {kNoStream, static_cast<StreamId>(stream->value)}) {
    for (const Access access : {Access::kRead, Access::kReadWrite}) {
      faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead, .count = 1000});
      int failures = 0;
      for (int attempt = 0; attempt < 100 && failures < 2; ++attempt) {
        ASSERT_EQ(mover_->Evict(0), absl::OkStatus());
        const auto lease = mover_->Acquire(0, Tier::kDevice, access, on);
        // A bit of the last page's unit that lies beyond the tile's end does no harm.
        if (lease.ok()) {
          if (lease->arrival.value != nullptr) {
            EXPECT_EQ(runtime.Synchronize(lease->arrival), absl::OkStatus());
            runtime.DestroyEvent(lease->arrival);
          }
          mover_->EndLease(0, Tier::kDevice, access, nullptr);
          continue;
        }
        ++failures;
        ASSERT_EQ(lease.status().code(), absl::StatusCode::kDataLoss) << lease.status();
        for (const char* part : {"tile 0", "page ", "offset ", folder_.path().c_str()}) {
          EXPECT_NE(lease.status().message().find(part), absl::string_view::npos)
              << part << " in: " << lease.status();
        }
      }
      ASSERT_EQ(failures, 2);
      faulty_->Clear();
      CheckAll(Tier::kDevice);
    }
  }
  runtime.DestroyStream(*stream);
}

TEST_P(MoverFaultTest, AFailedReadReachesTheCallerAndTheNextTryGoesThrough) {
  StoreAll();
  faulty_->Inject({.kind = Fault::Kind::kEio, .op = io::IoOp::kRead});
  const absl::Status status = Check(0, Tier::kDevice);
  ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("EIO"), absl::string_view::npos) << status;
  faulty_->Clear();
  CheckAll();
}

TEST_P(MoverFaultTest, NothingIsCommittedOverAWriteThatFailed) {
  StoreAll();
  faulty_->Inject({.kind = Fault::Kind::kEnospc, .op = io::IoOp::kWrite, .count = 1000});
  ASSERT_TRUE(Put(0).ok());
  for (int round = 0; round < 3; ++round) {
    const absl::Status status = FlushAll(*mover_);
    ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  faulty_->Clear();
  const absl::Status status = FlushAll(*mover_);
  ASSERT_TRUE(status.ok()) << status;
  CheckAll();
}

TEST_P(MoverFaultTest, ACommitTriesAllWritesThatFailedAgain) {
  StoreAll();
  for (TileIndex tile = 0; tile < 4; ++tile) {
    const auto lease = mover_->Acquire(tile, Tier::kPinned, Access::kReadWrite, nullptr);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::fill_n(reinterpret_cast<uint32_t*>(lease->data), kTileBytes / 4, ++values_[tile]);
  }
  faulty_->Inject({.kind = Fault::Kind::kEio, .op = io::IoOp::kWrite, .count = 1000});
  for (TileIndex tile = 0; tile < 4; ++tile)
    mover_->EndLease(tile, Tier::kPinned, Access::kReadWrite, nullptr);
  const absl::Status failed = FlushAll(*mover_);
  ASSERT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  faulty_->Clear();
  EXPECT_TRUE(mover_->EndStep().ok());
  const absl::Status status = FlushAll(*mover_);
  ASSERT_TRUE(status.ok()) << status;
  CheckAll();
}

TEST_P(MoverFaultTest, ASnapshotWaitsForTheCommitOfAnotherThread) {
  // One tile fills less than half of pinned memory, so only the commit writes it.
  ASSERT_TRUE(Put(0).ok());
  faulty_->Inject({.kind = Fault::Kind::kDelay,
                   .op = io::IoOp::kWrite,
                   .count = 1000,
                   .delay = absl::Milliseconds(100)});
  std::thread commits([&] { EXPECT_TRUE(FlushAll(*mover_).ok()); });
  while (faulty_->faults_met() == 0) std::this_thread::yield();
  const absl::Status status = mover_->CheckNoLeases("Snapshot");
  EXPECT_TRUE(status.ok()) << status;
  commits.join();
}

TEST_P(MoverFaultTest, WhatIsForgottenCannotBeDiscardedOrEvicted) {
  ASSERT_TRUE(Put(0).ok());
  ASSERT_TRUE(mover_->Forget(0, 1, Stored::kRemoved, [](io::Store*) {}).ok());
  EXPECT_TRUE(absl::IsNotFound(mover_->Discard(0)));
  EXPECT_TRUE(absl::IsNotFound(mover_->Evict(0)));
}

TEST_P(MoverFaultTest, AWriteThatNobodyWaitedForIsReportedLater) {
  faulty_->Inject({.kind = Fault::Kind::kEio, .op = io::IoOp::kWrite, .count = 1000});
  absl::Status status;
  // The tiles exceed pinned memory: written tiles must leave, and their writes fail.
  for (TileIndex tile = 0; tile < kNumTiles && status.ok(); ++tile) status = Put(tile);
  if (status.ok()) status = mover_->EndStep();
  ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  faulty_->Clear();
  Settle();
  CheckAll();
}

TEST_P(MoverFaultTest, DelaysShortTransfersAndEagainChangeNothing) {
  std::mt19937_64 random(test::Seed());
  const std::vector<Fault::Kind> kinds = {Fault::Kind::kDelay, Fault::Kind::kShort,
                                          Fault::Kind::kAgain};
  for (const Fault& fault : io::RandomFaults(random(), kinds, 2000, 0.2)) faulty_->Inject(fault);
  for (int round = 0; round < 400; ++round) {
    const auto tile = static_cast<TileIndex>(random() % kNumTiles);
    const Tier tier = random() % 2 ? Tier::kDevice : Tier::kPinned;
    const absl::Status status = random() % 2 ? Put(tile, tier) : Check(tile, tier);
    ASSERT_TRUE(status.ok()) << status;
    if (round % 100 == 99) {
      ASSERT_TRUE(FlushAll(*mover_).ok());
    }
  }
  EXPECT_GT(faulty_->faults_met(), 10u);
  CheckAll();
}

TEST_P(MoverFaultTest, RandomFailuresLoseNoValue) {
  std::mt19937_64 random(test::Seed());
  const std::vector<Fault::Kind> kinds = {Fault::Kind::kEio, Fault::Kind::kEnospc,
                                          Fault::Kind::kDelay};
  for (const Fault& fault : io::RandomFaults(random(), kinds, 5000, 0.05)) faulty_->Inject(fault);
  int failures = 0;
  for (int round = 0; round < 600; ++round) {
    const auto tile = static_cast<TileIndex>(random() % kNumTiles);
    const Tier tier = random() % 2 ? Tier::kDevice : Tier::kPinned;
    const absl::Status status = random() % 2 ? Put(tile, tier) : Check(tile, tier);
    failures += status.ok() ? 0 : 1;
  }
  EXPECT_GT(failures, 0);
  faulty_->Clear();
  Settle();
  CheckAll();
}

// Callers on the host and on the device, with and without a stream, read and write tiles that
// mostly lie on NVMe. Now and then a read flips a bit.
TEST_P(MoverFaultTest, RandomCallersFindWhatWasWrittenLast) {
  constexpr int kSteps = 3000;
  std::mt19937_64 random(test::Seed());
  auto machine = OpenMachine({.store = {folder_ / "public"},
                              .mode = OpenMode::kScratch,
                              .device_bytes = 3 * 40960,
                              .pinned_bytes = kPinnedBytes,
                              .page_bytes = 16 * kKiB,
                              .io = GetParam()},
                             test::Seed());
  ASSERT_TRUE(machine.ok()) << machine.status();
  Engine& engine = *machine->engine;
  const auto tensor = engine.Register(
      {.name = "w", .shape = {kNumTiles, kTileBytes / 4}, .tile_rows = 1, .transient = false});
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const auto stream = engine.CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  size_t flips = 0;
  for (int step = 0; step < kSteps; ++step) {
    const TileRef tile = {*tensor, random() % kNumTiles};
    uint32_t& value = values_[tile.tile];
    const bool writes = random() % 2 == 0, on_stream = random() % 2 == 0;
    const Access access = writes ? Access::kReadWrite : Access::kRead;
    // One flip at a time: if the second read of a page had one, too, the page would be lost.
    if (random() % 20 == 0 && machine->disk->faults_met() == flips) {
      machine->disk->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead});
      ++flips;
    }
    auto lease = random() % 3 == 0
                     ? engine.AcquireHost(tile, access)
                     : engine.Acquire(tile, access, on_stream ? stream->get() : nullptr);
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_EQ((*stream)->Synchronize(), absl::OkStatus());
    for (uint32_t& element : lease->as<uint32_t>()) {
      ASSERT_EQ(element, value) << "step " << step << ", tile " << tile.tile;
      if (writes) ++element;
    }
    if (writes) ++value;
    lease->Release();
    if (random() % 100 == 0) {
      ASSERT_EQ(engine.Commit(""), absl::OkStatus());
    }
  }
  EXPECT_GT(flips, 10u);
}

INSTANTIATE_TEST_SUITE_P(Engines, MoverFaultTest, testing::Values(IoKind::kUring, IoKind::kPosix),
                         [](const auto& variant) {
                           return variant.param == IoKind::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace spillway::engine
