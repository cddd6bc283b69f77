// SPDX-License-Identifier: Apache-2.0
//
// Transfers ahead of their declared use, driven step by step.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/engine/pager/pager.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kTileBytes = kFrameAlignment;

// Pinned memory has room for two of three tiles.
class PagerPrefetch : public testing::Test {
 protected:
  PagerPrefetch() : pager_(Options()) {
    for (int i = 0; i < 3; ++i) pager_.AddTile(kTileBytes, Role::kParameter, false, true);
  }
  static PagerOptions Options() {
    PagerOptions options;
    options.pinned_bytes = 2 * kTileBytes;
    options.has_store = true;
    options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
    return options;
  }

  // Carries out all actions and returns the tiles that were read.
  std::vector<TileIndex> Run() {
    std::vector<TileIndex> read;
    for (std::vector<Action> actions; !(actions = pager_.TakeActions()).empty();) {
      for (const Action& action : actions) {
        if (!action.Is(Transfer::kRead)) continue;
        read.push_back(action.tile);
        pager_.TransferDone(action.tile, {});
      }
    }
    return read;
  }
  std::vector<TileIndex> Lease(TileIndex tile) {
    pager_.Acquire(/*ticket=*/1, tile, Tier::kPinned, Access::kRead, kNoStream);
    std::vector<TileIndex> read = Run();
    (void)pager_.EndLease(tile, Tier::kPinned, Access::kRead, /*drained=*/false);
    for (const TileIndex more : Run()) read.push_back(more);
    return read;
  }

  Pager pager_;
};

TEST_F(PagerPrefetch, SendsAwayWhatIsNotNeededBefore) {
  using Tiles = std::vector<TileIndex>;
  EXPECT_EQ(Lease(0), Tiles{0});
  EXPECT_EQ(Lease(1), Tiles{1});
  for (const TileIndex tile : {0, 1, 2}) pager_.Declare(tile, Tier::kPinned, Access::kRead);
  EXPECT_EQ(Run(), Tiles{}) << "both tiles that are there are needed before";
  EXPECT_EQ(Lease(0), Tiles{2}) << "tile 0 is needed no longer";
  EXPECT_EQ(Lease(1), Tiles{});
  EXPECT_EQ(Lease(2), Tiles{});
}

// The device has room for two of three tiles. Another tile's bytes are copied out before the third
// tile is leased.
TEST(PagerRoomAhead, IsMadeForWhatWillBeWrittenWhole) {
  PagerOptions options;
  options.device_bytes = 2 * kTileBytes;
  options.pinned_bytes = 4 * kTileBytes;
  options.has_store = true;
  options.describe = [](TileIndex tile) { return "tile " + std::to_string(tile); };
  Pager pager(options);
  for (int i = 0; i < 3; ++i) pager.AddTile(kTileBytes, Role::kParameter, false, true);
  using Tiles = std::vector<TileIndex>;
  // Leases the tile and returns the tiles that were copied out until the lease had ended.
  const auto write = [&](TileIndex tile) {
    Tiles copied_out;
    const auto run = [&] {
      for (std::vector<Action> actions; !(actions = pager.TakeActions()).empty();) {
        for (const Action& action : actions) {
          if (action.kind != Action::Kind::kTransfer) continue;
          EXPECT_TRUE(action.Is(Transfer::kCopyOut));
          copied_out.push_back(action.tile);
          pager.TransferDone(action.tile, {});
        }
      }
    };
    pager.Acquire(/*ticket=*/1, tile, Tier::kDevice, Access::kDiscard, kNoStream);
    run();
    (void)pager.EndLease(tile, Tier::kDevice, Access::kDiscard, /*drained=*/false);
    run();
    return copied_out;
  };
  for (const TileIndex tile : {0, 1, 2}) pager.Declare(tile, Tier::kDevice, Access::kDiscard);
  EXPECT_EQ(write(0), Tiles{0}) << "for tile 2, which has not been asked for";
  EXPECT_EQ(write(1), Tiles{});
  EXPECT_EQ(write(2), Tiles{}) << "its frame was there";
}

}  // namespace
}  // namespace spillway::engine
