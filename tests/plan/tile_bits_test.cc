// SPDX-License-Identifier: Apache-2.0

#include "src/plan/tile_bits.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>

#include "tests/seed.h"

namespace spillway::plan {
namespace {

// Compares the bits with a std::set.
TEST(TileBits, GivesThoseThatAreSetInOrder) {
  const uint64_t seed = test::Seed();
  SCOPED_TRACE(test::SeedLine(seed));
  std::mt19937_64 random(seed);
  TileBits bits;
  std::set<TileIndex> truth;
  for (int change = 0; change < 2000; ++change) {
    const auto tile = static_cast<TileIndex>(random() % 400);
    const bool value = random() % 4 == 0;  // few are set, so that whole words are skipped
    bits.Set(tile, value);
    value ? (void)truth.insert(tile) : (void)truth.erase(tile);
    const auto from = static_cast<TileIndex>(random() % 500);
    const auto next = truth.lower_bound(from);
    ASSERT_EQ(bits.Next(from), next == truth.end() ? std::nullopt : std::optional(*next));
    ASSERT_EQ(bits[from], truth.count(from) > 0);
  }
  bits.Clear();
  EXPECT_EQ(bits.Next(0), std::nullopt);
}

}  // namespace
}  // namespace spillway::plan
