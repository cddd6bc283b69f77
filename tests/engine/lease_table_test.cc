// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/lease_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "src/base/mutex.h"

namespace spillway::engine {
namespace {

std::vector<SharedLease> TakeLog(LeaseTable& table) {
  std::vector<SharedLease> logged;
  for (LeaseTable::LogEntry* first = table.TakeLog(); first != nullptr;)
    logged.push_back(table.Pop(&first));
  return logged;
}

TEST(LeaseCount, GivesNoLeaseWhileItIsClosed) {
  LeaseCount count;
  EXPECT_FALSE(count.TryTake());
  count.Open();
  EXPECT_TRUE(count.TryTake());
  EXPECT_TRUE(count.TryTake());
  EXPECT_EQ(count.leases(), 2u);
  EXPECT_FALSE(count.Close()) << "two leases are there";
  EXPECT_FALSE(count.TryTake());
  count.End();
  EXPECT_FALSE(count.Close());
  count.End();
  EXPECT_TRUE(count.Close());
  EXPECT_FALSE(count.TryTake());
}

TEST(LeaseTable, TellsOfLeasesInTheirOrder) {
  LeaseTable table;
  for (int tile = 0; tile < 3; ++tile) table.AddTile();
  EXPECT_EQ(table.TryTake(1, Tier::kPinned), std::nullopt);
  table.Open(1, Tier::kPinned, 4096);
  EXPECT_EQ(table.TryTake(1, Tier::kDevice), std::nullopt) << "each tier has its own count";
  EXPECT_EQ(table.TryTake(1, Tier::kPinned), 4096u);
  table.Log({.tile = 1, .tier = Tier::kPinned, .ns = 7});
  table.Log({.tile = 2, .tier = Tier::kDevice, .ns = 8});
  const std::vector<SharedLease> logged = TakeLog(table);
  ASSERT_EQ(logged.size(), 2u);
  EXPECT_EQ(logged[0].tile, 1u);
  EXPECT_EQ(logged[0].tier, Tier::kPinned);
  EXPECT_EQ(logged[0].ns, 7);
  EXPECT_EQ(logged[1].tile, 2u);
  EXPECT_TRUE(TakeLog(table).empty());
  EXPECT_FALSE(table.CloseAll());
  table.count(1, Tier::kPinned).End();
  EXPECT_TRUE(table.CloseAll());
  // Each round logs several leases, which are then taken one at a time. A log entry is reused.
  for (int round = 0; round < 3; ++round) {
    for (TileIndex tile = 0; tile < 5; ++tile) table.Log({.tile = tile, .ns = round});
    const std::vector<SharedLease> many = TakeLog(table);
    ASSERT_EQ(many.size(), 5u);
    for (TileIndex tile = 0; tile < 5; ++tile) {
      EXPECT_EQ(many[tile].tile, tile);
      EXPECT_EQ(many[tile].ns, round);
    }
  }
  table.Log({.tile = 0});  // never taken: the table frees it
}

// An owner moves bytes while readers take leases at any time. No reader ever finds bytes that have
// moved away, and no bytes move under a lease. The bytes are plain memory, so that the thread
// sanitizer also reports missing ordering.
TEST(LeaseTable, ReadersNeverMeetBytesThatMove) {
  constexpr int kTiles = 3, kReaders = 3, kMoves = 3000;
  struct Value {
    TileIndex tile;
    bool here;
  };
  std::array<std::array<Value, 2>, kTiles> memory{};  // two places for each tile
  LeaseTable table;
  base::Mutex mu;
  for (TileIndex tile = 0; tile < kTiles; ++tile) {
    table.AddTile();
    memory[tile] = {{{tile, true}, {tile, false}}};
    table.Open(tile, Tier::kDevice, 0);
  }
  std::atomic<bool> stop = false;
  std::atomic<int64_t> taken = 0, wrong = 0, logged = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      for (auto turn = static_cast<TileIndex>(reader); !stop; ++turn) {
        const TileIndex tile = turn % kTiles;
        const auto offset = table.TryTake(tile, Tier::kDevice);
        if (!offset) continue;
        table.Log({.tile = tile, .tier = Tier::kDevice});
        const Value& value = memory[tile][*offset];
        if (!value.here || value.tile != tile) ++wrong;
        ++taken;
        base::MutexLock lock(&mu);
        table.count(tile, Tier::kDevice).End();
      }
    });
  }
  std::array<uint64_t, kTiles> at{};
  int moves = 0, refused = 0;
  for (TileIndex tile = 0; moves < kMoves || taken < kMoves; tile = (tile + 1) % kTiles) {
    base::MutexLock lock(&mu);
    logged += static_cast<int64_t>(TakeLog(table).size());
    if (!table.count(tile, Tier::kDevice).Close()) {
      ++refused;
    } else {
      memory[tile][at[tile]].here = false;
      at[tile] ^= 1;
      memory[tile][at[tile]].here = true;
      ++moves;
    }
    table.Open(tile, Tier::kDevice, at[tile]);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  logged += static_cast<int64_t>(TakeLog(table).size());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(logged, taken);
  EXPECT_TRUE(table.CloseAll());
  std::printf("%d moves, %d refused, %ld leases\n", moves, refused, static_cast<long>(taken));
}

}  // namespace
}  // namespace spillway::engine
