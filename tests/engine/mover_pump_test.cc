// SPDX-License-Identifier: Apache-2.0
//
// A mover whose pager looks at one thing of each kind in a run of its pump. What a run leaves over
// must be reached by later runs, even if a lease waits for it while nothing is in flight.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "io/make_io_engine.h"
#include "tests/engine/open_mover.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = 16 * kKiB;
constexpr uint32_t kTiles = 48, kThreads = 2, kSteps = 40;

// Each thread writes its tiles once in a step, in an order that no other step has.
TEST(MoverPump, ALeaseGetsWhatTheLimitsLeftOver) {
  const uint64_t seed = test::Seed();
  SCOPED_TRACE(test::SeedLine(seed));
  const test::TempFolder folder;
  auto io = io::MakeIoEngine(IoKind::kPosix, {}, folder.path());
  ASSERT_TRUE(io.ok()) << io.status();
  auto opened = OpenMover({folder / "s"}, *tiers::MakeDeviceRuntime(Device::Host()), *std::move(io),
                          6 * kTileBytes, 16 * kTileBytes, DescribeTile,
                          {.passed = 1, .idle = 1, .entering = 1, .settled = 1});
  ASSERT_TRUE(opened.ok()) << opened.status();
  Mover& mover = **opened;
  io::TensorIndex tensor = 0;
  mover.transfers().RunWithStore(
      [&](io::Store* store) { tensor = *store->AddTensor({"w", "{}", kTiles}, false); });
  for (uint32_t tile = 0; tile < kTiles; ++tile)
    mover.AddTile(kTileBytes, Role::kParameter, false, false, {tensor, tile});

  for (uint32_t step = 0; step < kSteps && !HasFailure(); ++step) {
    std::array<absl::Status, kThreads> ended;
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<TileIndex> tiles(kTiles / kThreads);
        for (uint32_t i = 0; i < tiles.size(); ++i) tiles[i] = thread + i * kThreads;
        std::shuffle(tiles.begin(), tiles.end(), std::mt19937_64(seed + step * kThreads + thread));
        for (const TileIndex tile : tiles) {
          const auto lease = mover.Acquire(tile, Tier::kDevice, Access::kReadWrite, kNoStream);
          ended[thread].Update(lease.status());
          if (!lease.ok()) return;
          auto* const value = reinterpret_cast<uint32_t*>(lease->data);
          if (*value != step * tile) ended[thread].Update(absl::DataLossError("another value"));
          *value += tile;
          mover.EndLease(tile, Tier::kDevice, Access::kReadWrite, nullptr);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status << " in " << step;
    EXPECT_TRUE(mover.EndStep().ok());
    EXPECT_TRUE(mover.WaitForPlan().ok());
  }
  EXPECT_GT(mover.Stats().plan.steps, 0u);
  EXPECT_GT(mover.Stats().plan.pulled, 0u);
}

}  // namespace
}  // namespace spillway::engine
