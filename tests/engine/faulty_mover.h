// SPDX-License-Identifier: Apache-2.0
//
// A fixture: a mover over a disk that fails on request, with tiles whose elements have the value
// that was written last. Pinned memory has room for four tiles, the device for two.

#ifndef SPILLWAY_TESTS_ENGINE_FAULTY_MOVER_H_
#define SPILLWAY_TESTS_ENGINE_FAULTY_MOVER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "tests/engine/open_mover.h"
#include "tests/io/io_uring_here.h"
#include "tests/temp_folder.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {

class FaultyMoverTest : public testing::TestWithParam<IoKind> {
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
    const auto lease = AcquireCompared(*mover_, tile, kTileBytes, tier, Access::kReadWrite);
    if (!lease.ok()) return lease.status();
    std::fill_n(reinterpret_cast<uint32_t*>(lease->data), kTileBytes / 4, ++values_[tile]);
    mover_->EndLease(tile, tier, Access::kReadWrite, nullptr);
    return absl::OkStatus();
  }

  // Reads the tile and compares every element with the last value written.
  absl::Status Check(TileIndex tile, Tier tier = Tier::kPinned) {
    const auto lease = AcquireCompared(*mover_, tile, kTileBytes, tier, Access::kRead);
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
  void CheckAll() {
    for (TileIndex tile = 0; tile < kNumTiles; ++tile) {
      const absl::Status status = Check(tile);
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

inline std::string IoKindName(const testing::TestParamInfo<IoKind>& variant) {
  return variant.param == IoKind::kUring ? "Uring" : "Posix";
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_FAULTY_MOVER_H_
