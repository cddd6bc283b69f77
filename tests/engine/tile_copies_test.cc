// SPDX-License-Identifier: Apache-2.0
//
// Copies between pinned memory and the host's device tier compare and hash what passes. They give
// no damaged byte to anyone, and the transfer thread hashes less.

#include "src/engine/tile_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "io/faulty_io_engine.h"
#include "tests/engine/faulty_machine.h"
#include "tests/engine/faulty_mover.h"
#include "tests/seed.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

using io::Fault;

class TileCopiesTest : public FaultyMoverTest {
 protected:
  // The CPU seconds in which the transfer thread has hashed.
  double HashingSeconds() { return mover_->transfers().link_use().checksums.seconds; }

  void CheckAllOnDevice() {
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
      const absl::Status status = Check(tile, Tier::kDevice);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void PutAllOnDevice() {
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
      const absl::Status status = Put(tile, Tier::kDevice);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  // Waits for the copy for which the lease's stream would wait.
  void Await(const Grant& lease) {
    if (lease.arrival.value == nullptr) return;
    EXPECT_EQ(mover_->transfers().runtime().Synchronize(lease.arrival), absl::OkStatus());
    mover_->transfers().runtime().DestroyEvent(lease.arrival);
  }
  // Stores tiles, and copies each to the device once. Their next reads are left to the copies.
  void StoreAllForDevice() {
    StoreAll();
    CheckAllOnDevice();
  }
};

TEST_P(TileCopiesTest, ACopyComparesWhatTheTransferThreadDoesNot) {
  StoreAllForDevice();
  const double before = HashingSeconds();
  EXPECT_GT(before, 0);
  CheckAllOnDevice();
  EXPECT_EQ(HashingSeconds(), before);
}

TEST_P(TileCopiesTest, AFlippedBitIsReadAgain) {
  StoreAllForDevice();
  faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead});
  CheckAllOnDevice();
  EXPECT_EQ(faulty_->faults_met(), 1u);
}

TEST_P(TileCopiesTest, AFlippedBitThatStaysFailsTheLease) {
  StoreAllForDevice();
  const auto stream = mover_->transfers().runtime().CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (const StreamId on : {kNoStream, static_cast<StreamId>(stream->value)}) {
    for (const Access access : {Access::kRead, Access::kReadWrite}) {
      faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead, .count = 1000});
      for (int failures = 0; failures < 2;) {
        ASSERT_EQ(mover_->Evict(0), absl::OkStatus());
        const auto lease = mover_->Acquire(0, Tier::kDevice, access, on);
        // A bit of the last page's unit that lies beyond the tile's end does no harm.
        if (lease.ok()) {
          Await(*lease);
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
      faulty_->Clear();
      CheckAllOnDevice();
    }
  }
  mover_->transfers().runtime().DestroyStream(*stream);
}

// Another user may be comparing the page meanwhile. A second damaged read must not show there.
TEST_P(TileCopiesTest, AFrameChangesOnlyWhenAPageWasReadWell) {
  StoreAllForDevice();
  faulty_->Inject({.kind = Fault::Kind::kBitFlip, .op = io::IoOp::kRead, .count = 1000});
  int damaged = 0;
  for (TileIndex tile = 0; tile < kNumTiles / 2; ++tile) {
    ASSERT_EQ(mover_->Evict(tile), absl::OkStatus());
    const auto lease = mover_->Acquire(tile, Tier::kPinned, Access::kRead, nullptr);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const std::vector<std::byte> before(lease->data, lease->data + kTileBytes);
    const std::vector<uint64_t> checksums = mover_->transfers().checksums().Of(tile);
    ASSERT_EQ(checksums.size(), 3u);
    for (uint64_t page = 0; page < checksums.size(); ++page) {
      if (mover_->ReadAgain(tile, page, checksums[page], lease->data).ok()) continue;
      EXPECT_TRUE(std::equal(before.begin(), before.end(), lease->data));
      ++damaged;
    }
    mover_->EndLease(tile, Tier::kPinned, Access::kRead, nullptr);
  }
  EXPECT_GT(damaged, 0);
}

TEST_P(TileCopiesTest, LeasesOnStreamsAreGrantedWhenTheCopyHasCompared) {
  StoreAllForDevice();
  tiers::DeviceRuntime& runtime = mover_->transfers().runtime();
  const auto stream = runtime.CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {  // the device has room for two tiles
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
          const auto lease = mover_->Acquire(tile, Tier::kDevice, Access::kRead, stream->value);
          ASSERT_TRUE(lease.ok()) << lease.status();
          Await(*lease);
          const auto* elements = reinterpret_cast<const uint32_t*>(lease->data);
          EXPECT_TRUE(std::all_of(elements, elements + kTileBytes / 4,
                                  [&](uint32_t element) { return element == values_[tile]; }));
          mover_->EndLease(tile, Tier::kDevice, Access::kRead, nullptr);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  runtime.DestroyStream(*stream);
}

TEST_P(TileCopiesTest, ACopyHashesWhatWillGoToNvme) {
  PutAllOnDevice();
  ASSERT_TRUE(FlushAll(*mover_).ok());
  PutAllOnDevice();  // reads that nobody has compared are compared by the copies
  ASSERT_TRUE(FlushAll(*mover_).ok());
  const double before = HashingSeconds();
  EXPECT_GT(before, 0);
  PutAllOnDevice();
  ASSERT_TRUE(FlushAll(*mover_).ok());
  EXPECT_EQ(HashingSeconds(), before);
  CheckAllOnDevice();
  CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Engines, TileCopiesTest, testing::Values(IoKind::kUring, IoKind::kPosix),
                         IoKindName);

// Callers on the host and on the device, with and without a stream, read and write tiles that
// mostly lie on NVMe. Now and then a read flips a bit.
TEST_P(TileCopiesTest, RandomCallersFindWhatWasWrittenLast) {
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

// Lets the test hold up the thread that reports a copy.
class HeldListener final : public TileCopies::Listener {
 public:
  void OnCopied(TileIndex, const absl::Status&) override {
    copied.set_value();
    go_on.get_future().wait();
  }
  void OnLaunched(const Action&, absl::Status status, tiers::EventHandle) override {
    launched = std::move(status);
  }
  void OnFailedWait(const absl::Status&) override {}

  std::promise<void> copied, go_on;
  std::optional<absl::Status> launched;
};

TEST(TileCopies, ALeaseThatFailsIsAnsweredAfterTheEndOfItsCopyWasReported) {
  constexpr uint64_t kPage = 4096;
  const auto runtime = *tiers::MakeDeviceRuntime(Device::Host());
  std::vector<std::byte> pinned(kPage), device(kPage, std::byte{1});
  TileChecksums checksums;
  checksums.AddTile();
  checksums.Set(0, TileChecksums::Kind::kExpected, {1});
  Tile tile;
  tile.size_bytes = kPage;
  HeldListener listener;
  {
    TileCopies copies({.runtime = runtime.get(),
                       .pinned = pinned.data(),
                       .device = device.data(),
                       .page_bytes = kPage,
                       .checksums = &checksums,
                       .read_again = [](const Tile&, uint64_t, uint64_t,
                                        std::byte*) { return absl::DataLossError("damaged"); }},
                      &listener);
    ASSERT_EQ(copies.Start(), absl::OkStatus());
    copies.Copy({.kind = Action::Kind::kTransfer, .transfer = Transfer::kCopyIn}, tile);
    listener.copied.get_future().wait();
    copies.Grant({.kind = Action::Kind::kGrant});
    EXPECT_FALSE(listener.launched.has_value());
    listener.go_on.set_value();
  }
  ASSERT_TRUE(listener.launched.has_value());
  EXPECT_EQ(listener.launched->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(device, std::vector<std::byte>(kPage, std::byte{1}));
}

// What becomes of the copy out of a tile, as the checksums are told.
TEST(TileChecksums, ACopyOutIsHashedIfTheOneBeforeWentToNvme) {
  TileChecksums checksums;
  checksums.AddTile();
  EXPECT_FALSE(checksums.NoteCopyOut(0));
  EXPECT_FALSE(checksums.NoteCopyOut(0));  // the first one stayed in memory
  checksums.NoteWrite(0, /*was_hashed=*/false);
  EXPECT_TRUE(checksums.NoteCopyOut(0));
  checksums.NoteWrite(0, /*was_hashed=*/true);
  EXPECT_TRUE(checksums.NoteCopyOut(0));
  EXPECT_FALSE(checksums.NoteCopyOut(0));  // the one before stayed in memory
  checksums.NoteWrite(0, /*was_hashed=*/false);
  EXPECT_TRUE(checksums.NoteCopyOut(0));
  checksums.NoteWrite(0, /*was_hashed=*/false);  // a caller has written the bytes meanwhile
  EXPECT_FALSE(checksums.NoteCopyOut(0));
}

}  // namespace
}  // namespace spillway::engine
