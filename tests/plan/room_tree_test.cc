// SPDX-License-Identifier: Apache-2.0
//
// Compares the tree with a plain array of numbers.

#include "src/plan/room_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace spillway::plan {
namespace {

// Visits the positions from `begin` up to, not including, `end`, across the seam if `end` is not
// greater than `begin`.
template <typename Visit>
void ForEach(uint32_t begin, uint32_t end, uint32_t size, const Visit& visit) {
  uint32_t at = begin % size;
  do {
    visit(at);
    at = (at + 1) % size;
  } while (at != end % size);
}

// Also removes bytes that were there from the start, as a plan does that gives room back early.
TEST(RoomTree, KnowsTheFullestPositionOfEveryRange) {
  constexpr uint64_t kCapacity = 1000;
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 200; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const auto size = static_cast<uint32_t>(2 + random() % 70);
    std::vector<uint64_t> bytes(size);
    for (uint64_t& at : bytes) at = 200 + random() % 300;
    RoomTree tree(bytes, kCapacity);

    for (int round = 0; round < 100; ++round) {
      const auto begin = static_cast<uint32_t>(random() % size);
      const auto end = static_cast<uint32_t>((begin + 1 + random() % (size - 1)) % size);
      uint64_t least = kCapacity, most = 0;
      ForEach(begin, end, size, [&](uint32_t at) {
        least = std::min(least, bytes[at]);
        most = std::max(most, bytes[at]);
      });
      const uint64_t room = kCapacity - std::min(kCapacity, most);
      EXPECT_TRUE(most > kCapacity || tree.Fits(begin, end, room));
      EXPECT_FALSE(tree.Fits(begin, end, room + 1));
      const uint64_t change = random() % 100;
      if (random() % 2 == 0) {
        tree.Put(begin, end, change);
        ForEach(begin, end, size, [&](uint32_t at) { bytes[at] += change; });
      } else if (change <= least) {
        tree.Remove(begin, end, change);
        ForEach(begin, end, size, [&](uint32_t at) { bytes[at] -= change; });
      }
    }
  }
}

}  // namespace
}  // namespace spillway::plan
