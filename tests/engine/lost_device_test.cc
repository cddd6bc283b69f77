// SPDX-License-Identifier: Apache-2.0
//
// The mover over a device that is lost in the middle of its work, or that lacks memory for a
// moment. Every call ends with an error that gives the reason, nothing is committed after a loss,
// and the last commit is intact. The device is a test double over host memory. It fails as CUDA
// does once a kernel has failed, or when there is no memory for an event.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/make_io_engine.h"
#include "tests/engine/open_mover.h"
#include "tests/temp_folder.h"
#include "tiers/host_runtime.h"

namespace spillway::engine {
namespace {

using tiers::EventHandle;
using tiers::StreamHandle;

constexpr uint64_t kTileBytes = 40960;
constexpr TileIndex kNumTiles = 12;

constexpr int kNever = 1'000'000;

// A device that can be lost. Its copies and events then fail, and what was in flight ends with the
// failure.
class LosableRuntime final : public tiers::DeviceRuntime {
 public:
  // The device is lost at the first copy after this many.
  explicit LosableRuntime(int copies) : copies_left_(copies) {}

  void Lose() { lost_ = true; }
  // From now on, no event can be made, although all else works.
  void SetOutOfMemory(bool out) { is_out_of_memory_ = out; }
  // From now on, waits fail although the device is not lost.
  void FailWaits() { waits_fail_ = true; }
  // The next registration of host memory fails.
  void RefuseMemoryOnce() { refuses_memory_ = true; }
  // Makes copies slow, and counts those that have ended.
  void SlowDown() { is_slow_ = true; }
  int copies_ended() const { return copies_ended_; }

  std::string name() const override { return host_->name(); }
  absl::Status Check() const override {
    return lost_ ? absl::AbortedError("the GPU is lost") : absl::OkStatus();
  }
  uint64_t usable_bytes() const override { return host_->usable_bytes(); }
  absl::StatusOr<std::byte*> AllocateArena(uint64_t size_bytes) override {
    return host_->AllocateArena(size_bytes);
  }
  void FreeArena(std::byte* arena, uint64_t size_bytes) override {
    host_->FreeArena(arena, size_bytes);
  }
  absl::Status RegisterHostMemory(std::span<std::byte> memory) override {
    return refuses_memory_.exchange(false) ? NoMemory() : host_->RegisterHostMemory(memory);
  }
  void UnregisterHostMemory(std::span<std::byte> memory) override {
    host_->UnregisterHostMemory(memory);
  }
  absl::StatusOr<StreamHandle> CreateStream() override { return host_->CreateStream(); }
  absl::StatusOr<StreamHandle> WrapStream(void* native) override {
    return host_->WrapStream(native);
  }
  absl::Status CheckStream(StreamHandle stream) override { return host_->CheckStream(stream); }
  void DestroyStream(StreamHandle stream) override { host_->DestroyStream(stream); }
  absl::Status Launch(StreamHandle stream, std::function<void()> work) override {
    return lost_ ? Check() : host_->Launch(stream, std::move(work));
  }
  absl::Status Notify(StreamHandle stream, tiers::Notification notification) override {
    if (lost_ && !in_flight_) return Check();
    if (is_out_of_memory_) return NoMemory();
    in_flight_ = false;
    return host_->Notify(stream,
                         [this, notification = std::move(notification)](const absl::Status&) {
                           notification(waits_fail_ ? CannotWait() : Check());
                         });
  }
  absl::Status CopyAsync(StreamHandle stream, tiers::CopyDirection direction, void* destination,
                         const void* source, uint64_t size_bytes) override {
    if (lost_) return Check();
    if (copies_left_-- == 0) {
      in_flight_ = true;  // this copy is accepted, but does not happen
      lost_ = true;
      return absl::OkStatus();
    }
    if (!is_slow_) return host_->CopyAsync(stream, direction, destination, source, size_bytes);
    return host_->Launch(stream, [this, destination, source, size_bytes] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::memcpy(destination, source, size_bytes);
      ++copies_ended_;
    });
  }
  absl::Status Synchronize(StreamHandle stream) override {
    return waits_fail_ ? CannotWait() : host_->Synchronize(stream);
  }
  void* native_handle(StreamHandle stream) override { return host_->native_handle(stream); }
  absl::StatusOr<EventHandle> CreateEvent() override {
    if (lost_) return Check();
    return is_out_of_memory_ ? NoMemory() : host_->CreateEvent();
  }
  void DestroyEvent(EventHandle event) override { host_->DestroyEvent(event); }
  absl::Status Record(EventHandle event, StreamHandle stream) override {
    return lost_ ? Check() : host_->Record(event, stream);
  }
  absl::Status Wait(StreamHandle stream, EventHandle event) override {
    return lost_ ? Check() : host_->Wait(stream, event);
  }
  absl::StatusOr<bool> Query(EventHandle event) override { return host_->Query(event); }
  absl::Status Synchronize(EventHandle event) override { return host_->Synchronize(event); }

 private:
  static absl::Status NoMemory() { return absl::ResourceExhaustedError("the GPU has no memory"); }

  static absl::Status CannotWait() { return absl::InternalError("operation not permitted"); }

  const std::unique_ptr<tiers::DeviceRuntime> host_ = tiers::CreateHostRuntime();
  std::atomic<int> copies_left_;
  std::atomic<bool> lost_ = false;
  std::atomic<bool> in_flight_ = false;
  std::atomic<bool> is_out_of_memory_ = false;
  std::atomic<bool> waits_fail_ = false;
  std::atomic<bool> refuses_memory_ = false;
  std::atomic<bool> is_slow_ = false;
  std::atomic<int> copies_ended_ = 0;
};

class LostDevice : public testing::Test {
 protected:
  std::unique_ptr<Mover> Open(std::unique_ptr<tiers::DeviceRuntime> runtime, bool stored) {
    auto io = *io::MakeIoEngine(IoKind::kAuto, {}, folder_.path());
    auto mover = *OpenMover({folder_ / "s"}, std::move(runtime), std::move(io), 2 * kTileBytes,
                            4 * kTileBytes);
    io::TensorIndex tensor = 0;
    mover->transfers().RunWithStore([&](io::Store* store) {
      tensor =
          stored ? **store->FindTensor("w") : *store->AddTensor({"w", "{}", 3 * kNumTiles}, false);
    });
    for (uint64_t tile = 0; tile < kNumTiles; ++tile) {
      mover->AddTile(kTileBytes, Role::kParameter, false, stored, {tensor, tile * 3});
    }
    return mover;
  }

  // Overwrites the tile with `value` in a tier.
  static absl::Status Put(Mover& mover, TileIndex tile, Tier tier, uint32_t value,
                          const StreamHandle* stream = nullptr) {
    auto lease = mover.Acquire(tile, tier, Access::kReadWrite,
                               stream != nullptr ? stream->value : kNoStream);
    if (!lease.ok()) return lease.status();
    absl::Status status;
    if (lease->arrival.value != nullptr) {
      status = mover.transfers().runtime().Wait(*stream, lease->arrival);
      mover.transfers().runtime().DestroyEvent(lease->arrival);
    }
    auto fill = [data = lease->data, value] {
      std::fill_n(reinterpret_cast<uint32_t*>(data), kTileBytes / 4, value);
    };
    if (stream == nullptr) fill();
    if (stream != nullptr) status.Update(mover.transfers().runtime().Launch(*stream, fill));
    mover.EndLease(tile, tier, Access::kReadWrite, stream);
    return status;
  }

  // Leases tile 0 for writing on the stream, and launches work that ends with `end`.
  static void LaunchSlowWriter(Mover& mover, const StreamHandle& stream,
                               const std::function<void()>& end) {
    const auto lease = mover.Acquire(0, Tier::kPinned, Access::kReadWrite, stream.value);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto work = [end] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      end();
    };
    ASSERT_TRUE(mover.transfers().runtime().Launch(stream, work).ok());
  }

  static absl::Status Commit(Mover& mover) {
    return mover.Commit([](io::Store* store) { return store->Commit("one"); });
  }

  static void ExpectHolds(Mover& mover, TileIndex tile, uint32_t value) {
    const auto lease = mover.Acquire(tile, Tier::kPinned, Access::kRead, kNoStream);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto* elements = reinterpret_cast<const uint32_t*>(lease->data);
    EXPECT_TRUE(std::all_of(elements, elements + kTileBytes / 4,
                            [&](uint32_t element) { return element == value; }))
        << "tile " << tile;
    mover.EndLease(tile, Tier::kPinned, Access::kRead, nullptr);
  }

  void ExpectCommitted(uint32_t value) {
    const auto mover = Open(tiers::CreateHostRuntime(), /*stored=*/true);
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) ExpectHolds(*mover, tile, value);
  }

  test::TempFolder folder_;
};

TEST_F(LostDevice, EveryCallEndsAndTheLastCommitIsIntact) {
  constexpr int kCopiesOfCommit = 2 * kNumTiles;  // each tile is copied in and out at most once
  for (int copies = 0; copies < 3 * kCopiesOfCommit; copies += 9) {
    for (const bool on_stream : {false, true}) {
      SCOPED_TRACE(testing::Message() << copies << (on_stream ? " on a stream" : ""));
      std::filesystem::remove_all(folder_ / "s");
      auto mover = Open(std::make_unique<LosableRuntime>(copies), /*stored=*/false);
      for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
        ASSERT_TRUE(Put(*mover, tile, Tier::kPinned, 1).ok());
      }
      ASSERT_TRUE(Commit(*mover).ok());
      const StreamHandle stream = *mover->transfers().runtime().CreateStream();
      absl::Status status;
      for (int step = 0; step < 2 * kCopiesOfCommit; ++step) {
        const TileIndex tile = static_cast<TileIndex>(step) % kNumTiles;
        status.Update(Put(*mover, tile, Tier::kDevice, 2, on_stream ? &stream : nullptr));
      }
      (void)mover->transfers().runtime().Synchronize(stream);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      for (int attempt = 0; attempt < 3; ++attempt) {
        EXPECT_EQ(Commit(*mover).code(), absl::StatusCode::kAborted);
      }
      mover->transfers().runtime().DestroyStream(stream);
      mover.reset();  // waits for transfers in flight, so none is left
      ExpectCommitted(1);
    }
  }
}

TEST_F(LostDevice, AKernelThatFailsWhileACommitWaitsForItLeavesNoCommit) {
  auto made = std::make_unique<LosableRuntime>(kNever);
  LosableRuntime& runtime = *made;
  auto mover = Open(std::move(made), /*stored=*/false);
  const StreamHandle stream = *runtime.CreateStream();
  LaunchSlowWriter(*mover, stream, [&runtime] { runtime.Lose(); });
  mover->EndLease(0, Tier::kPinned, Access::kReadWrite, &stream);
  bool is_committed = false;
  const absl::Status status = mover->Commit([&](io::Store*) {
    is_committed = true;
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_FALSE(is_committed);
  runtime.DestroyStream(stream);
}

TEST_F(LostDevice, WithoutAnEventTheEndOfALeaseWaitsForItsStream) {
  auto made = std::make_unique<LosableRuntime>(kNever);
  LosableRuntime& runtime = *made;
  auto mover = Open(std::move(made), /*stored=*/false);
  const StreamHandle stream = *runtime.CreateStream();
  std::atomic<bool> is_written = false;
  LaunchSlowWriter(*mover, stream, [&] { is_written = true; });
  runtime.SetOutOfMemory(true);
  mover->EndLease(0, Tier::kPinned, Access::kReadWrite, &stream);
  // The engine takes the lease for ended, and may give the frame to another tile.
  EXPECT_TRUE(is_written);
  runtime.SetOutOfMemory(false);
  runtime.DestroyStream(stream);
}

TEST_F(LostDevice, WithoutAnEventACopyFailsOnlyWhenItHasEnded) {
  auto made = std::make_unique<LosableRuntime>(kNever);
  LosableRuntime& runtime = *made;
  auto mover = Open(std::move(made), /*stored=*/false);
  ASSERT_TRUE(Put(*mover, 0, Tier::kPinned, 1).ok());
  runtime.SlowDown();
  runtime.SetOutOfMemory(true);
  const auto lease = mover->Acquire(0, Tier::kDevice, Access::kRead, kNoStream);
  EXPECT_EQ(lease.status().code(), absl::StatusCode::kResourceExhausted) << lease.status();
  EXPECT_EQ(runtime.copies_ended(), 1);
  runtime.SetOutOfMemory(false);
  ExpectHolds(*mover, 0, 1);
}

// The work that was waited for may still be running, and may write what is committed.
TEST_F(LostDevice, AWaitThatFailsLeavesNoCommit) {
  enum class What { kEventOfALease, kStreamOfALease, kEventOfACopy, kStreamOfACopy };
  using enum What;
  for (const What what : {kEventOfALease, kStreamOfALease, kEventOfACopy, kStreamOfACopy}) {
    SCOPED_TRACE(static_cast<int>(what));
    std::filesystem::remove_all(folder_ / "s");
    auto made = std::make_unique<LosableRuntime>(kNever);
    LosableRuntime& runtime = *made;
    auto mover = Open(std::move(made), /*stored=*/false);
    for (TileIndex tile = 0; tile < kNumTiles; ++tile)
      ASSERT_TRUE(Put(*mover, tile, Tier::kPinned, 1).ok());
    ASSERT_TRUE(Commit(*mover).ok());
    const StreamHandle stream = *runtime.CreateStream();
    runtime.FailWaits();
    runtime.SetOutOfMemory(what == kStreamOfALease || what == kStreamOfACopy);
    if (what == kEventOfALease || what == kStreamOfALease) {
      LaunchSlowWriter(*mover, stream, [] {});
      mover->EndLease(0, Tier::kPinned, Access::kReadWrite, &stream);
    } else {
      EXPECT_FALSE(Put(*mover, 0, Tier::kDevice, 2).ok());
    }
    for (int attempt = 0; attempt < 3; ++attempt) {
      const absl::Status status = Commit(*mover);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_NE(status.message().find("may still be running"), absl::string_view::npos) << status;
    }
    runtime.DestroyStream(stream);
    mover.reset();
    ExpectCommitted(1);
  }
}

TEST_F(LostDevice, CallersThatWaitAreTold) {
  auto mover = Open(std::make_unique<LosableRuntime>(7), /*stored=*/false);
  std::vector<std::thread> threads;
  std::atomic<int> aborted = 0;
  for (unsigned thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      absl::Status status;
      for (int step = 0; step < 100 && status.ok(); ++step) {
        const TileIndex tile = (static_cast<TileIndex>(step) * 2 + thread) % kNumTiles;
        status = Put(*mover, tile, Tier::kDevice, 2);
      }
      if (absl::IsAborted(status)) ++aborted;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(aborted, 2);
}

// Pinned memory of two tiles, each in a slab of its own that is registered with the device when it
// is used first.
class RefusedMemory : public LostDevice {
 protected:
  void Open() {
    mover_.reset();
    MoverParts parts;
    auto runtime = std::make_unique<LosableRuntime>(kNever);
    runtime_ = runtime.get();
    parts.runtime = std::move(runtime);
    parts.io = *io::MakeIoEngine(IoKind::kAuto, {}, folder_.path());
    parts.store =
        *io::Store::Open({.folders = {folder_ / "s"}, .page_bytes = 16 * kKiB}, parts.io.get());
    tiers::PinnedArenaOptions pinned = {.size_bytes = 2 * kTileBytes, .slab_bytes = kTileBytes};
    pinned.register_slab = [this](std::span<std::byte> slab) {
      return runtime_->RegisterHostMemory(slab);
    };
    parts.pinned = *tiers::PinnedArena::Create(std::move(pinned));
    parts.slab_bytes = kTileBytes;
    parts.device_bytes = 2 * kTileBytes;
    PagerOptions pager;
    pager.device_bytes = pager.pinned_bytes = 2 * kTileBytes;
    pager.has_store = true;
    pager.describe = DescribeTile;
    mover_ = *Mover::Create(std::move(parts), pager, &plan::WaysToRetain);
    mover_->transfers().RunWithStore([&](io::Store* store) {
      const std::optional<io::TensorIndex> found = *store->FindTensor("w");
      const io::TensorIndex tensor = found ? *found : *store->AddTensor({"w", "{}", 9}, false);
      for (uint64_t page = 0; page < 9; page += 3) {
        const bool stored = store->FindPage(tensor, page)->has_value();
        mover_->AddTile(kTileBytes, Role::kParameter, false, stored, {tensor, page});
      }
    });
  }

  // Commits tiles 0 and 1, and opens the store again.
  void OpenWithTwoTiles() {
    Open();
    ASSERT_TRUE(Put(*mover_, 0, Tier::kPinned, 7).ok());
    ASSERT_TRUE(Put(*mover_, 1, Tier::kPinned, 8).ok());
    ASSERT_TRUE(Commit(*mover_).ok());
    Open();
  }

  // Leases tile 1, which takes the first slab, and then requests `tile`, which takes the second.
  void FailToDiscard(TileIndex tile) {
    ASSERT_TRUE(mover_->Acquire(1, Tier::kPinned, Access::kRead, kNoStream).ok());
    runtime_->RefuseMemoryOnce();
    const auto lease = mover_->Acquire(tile, Tier::kPinned, Access::kDiscard, kNoStream);
    ASSERT_EQ(lease.status().code(), absl::StatusCode::kResourceExhausted) << lease.status();
    mover_->EndLease(1, Tier::kPinned, Access::kRead, nullptr);
  }

  LosableRuntime* runtime_ = nullptr;
  std::unique_ptr<Mover> mover_;
};

TEST_F(RefusedMemory, ATileThatWasToBeOverwrittenHasItsBytesAgain) {
  OpenWithTwoTiles();
  FailToDiscard(0);
  ExpectHolds(*mover_, 0, 7);
  ASSERT_TRUE(Commit(*mover_).ok());
  Open();
  ExpectHolds(*mover_, 0, 7);
  ExpectHolds(*mover_, 1, 8);
}

TEST_F(RefusedMemory, ATileWithoutBytesOnNvmeIsZero) {
  OpenWithTwoTiles();
  FailToDiscard(2);
  ExpectHolds(*mover_, 2, 0);
  ExpectHolds(*mover_, 1, 8);
}

// The newest bytes were on the device only, and the lease had let them go.
TEST_F(RefusedMemory, ATileWithOlderBytesOnNvmeIsZeroInTheCommitToo) {
  OpenWithTwoTiles();
  ASSERT_TRUE(Put(*mover_, 0, Tier::kDevice, 9).ok());
  FailToDiscard(0);
  ExpectHolds(*mover_, 0, 0);
  ASSERT_TRUE(Commit(*mover_).ok());
  Open();
  ExpectHolds(*mover_, 0, 0);
  ExpectHolds(*mover_, 1, 8);
}

}  // namespace
}  // namespace spillway::engine
