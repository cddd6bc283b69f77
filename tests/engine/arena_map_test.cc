// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/arena_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kUnit = kFrameAlignment;

// Checks that segments leave no gap and do not overlap, that adjacent free segments are merged, and
// that the count of used bytes matches the segments.
void CheckInvariants(const ArenaMap& arena) {
  uint64_t at = 0, used = 0;
  bool free_before = false;
  for (const auto& [offset, segment] : arena.segments()) {
    ASSERT_EQ(offset, at);
    ASSERT_GT(segment.size_bytes, 0u);
    const bool is_free = segment.kind == ArenaMap::Kind::kFree;
    ASSERT_FALSE(free_before && is_free) << "free neighbours at " << offset;
    free_before = is_free;
    if (!is_free) used += segment.size_bytes;
    at += segment.size_bytes;
  }
  ASSERT_EQ(at, arena.size_bytes());
  ASSERT_EQ(used, arena.used_bytes());
}

TEST(ArenaMap, RoundsItsSizeDown) { EXPECT_EQ(ArenaMap(3 * kUnit + 17).size_bytes(), 3 * kUnit); }

TEST(ArenaMap, AllocatesTheSmallestRunThatFits) {
  ArenaMap arena(10 * kUnit);
  const auto a = arena.Allocate(2 * kUnit, 0), b = arena.Allocate(kUnit, 1),
             c = arena.Allocate(3 * kUnit, 2);
  ASSERT_TRUE(a && b && c && arena.Allocate(kUnit, 3));
  arena.Free(*a);  // free runs: 2 units at 0, 3 units at the end
  EXPECT_EQ(arena.Allocate(2 * kUnit, 4), a);
  EXPECT_FALSE(arena.Allocate(4 * kUnit, 5));
  CheckInvariants(arena);
}

TEST(ArenaMap, AllocatesNothingBelowAnOffset) {
  ArenaMap arena(10 * kUnit);
  EXPECT_EQ(arena.Allocate(2 * kUnit, 0, 3 * kUnit), 3 * kUnit);
  EXPECT_EQ(arena.Allocate(3 * kUnit, 1, 3 * kUnit), 5 * kUnit);  // although [0, 3) is large enough
  EXPECT_FALSE(arena.HasFree(3 * kUnit, 3 * kUnit));
  EXPECT_TRUE(arena.HasFree(3 * kUnit));
  CheckInvariants(arena);
}

TEST(ArenaMap, AWindowOverFramesAndFreeRoomBecomesAFrame) {
  ArenaMap arena(8 * kUnit);
  const auto a = arena.Allocate(3 * kUnit, 0), b = arena.Allocate(3 * kUnit, 1);
  ASSERT_TRUE(a && b);
  // The window has 4 units from b on: all of b and one unit of the free tail.
  arena.ClaimFree(*b, 4 * kUnit, 9);
  CheckInvariants(arena);
  EXPECT_FALSE(arena.Allocate(2 * kUnit, 5)) << "one unit of the tail is claimed";
  arena.FreeInto(*b, *b, 4 * kUnit, 9);
  arena.ClaimedToFrame(*b, 4 * kUnit, 9);
  CheckInvariants(arena);
  EXPECT_EQ(arena.segments().at(*b).tile, 9u);
}

TEST(ArenaMap, WhatAFrameHasBeyondTheWindowBecomesFree) {
  ArenaMap arena(6 * kUnit);
  const auto a = arena.Allocate(6 * kUnit, 0);
  arena.FreeInto(*a, kUnit, 2 * kUnit, 3);
  CheckInvariants(arena);
  EXPECT_EQ(arena.used_bytes(), 2 * kUnit);
  arena.GiveUpClaim(kUnit, 2 * kUnit, 3);
  CheckInvariants(arena);
  EXPECT_EQ(arena.segments().size(), 1u);
}

TEST(ArenaMap, RandomAllocationsAgreeWithAByteMap) {
  std::mt19937_64 random(test::Seed());
  ArenaMap arena(64 * kUnit);
  std::map<uint64_t, uint64_t> frames;
  std::vector<bool> taken(64, false);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t units = 1 + random() % 9;
    if (random() % 2 == 0) {
      const bool room = arena.HasFree(units * kUnit);
      const auto offset = arena.Allocate(units * kUnit, 0);
      ASSERT_EQ(room, offset.has_value());
      if (!offset) continue;
      for (uint64_t i = 0; i < units; ++i) {
        ASSERT_FALSE(taken[*offset / kUnit + i]);
        taken[*offset / kUnit + i] = true;
      }
      frames[*offset] = units;
    } else if (!frames.empty()) {
      auto it = std::next(frames.begin(), static_cast<long>(random() % frames.size()));
      for (uint64_t i = 0; i < it->second; ++i) taken[it->first / kUnit + i] = false;
      arena.Free(it->first);
      frames.erase(it);
    }
    CheckInvariants(arena);
  }
}

}  // namespace
}  // namespace spillway::engine
