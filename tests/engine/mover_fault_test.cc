// SPDX-License-Identifier: Apache-2.0
//
// The mover over a disk that fails. No error and no value is lost, and nothing is committed over a
// write that failed.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "io/faulty_io_engine.h"
#include "tests/engine/faulty_mover.h"
#include "tests/seed.h"

namespace spillway::engine {
namespace {

using io::Fault;

class MoverFaultTest : public FaultyMoverTest {};

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
  ASSERT_TRUE(mover_->Forget(0, 1, [](io::Store*) {}).ok());
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

INSTANTIATE_TEST_SUITE_P(Engines, MoverFaultTest, testing::Values(IoKind::kUring, IoKind::kPosix),
                         IoKindName);

}  // namespace
}  // namespace spillway::engine
