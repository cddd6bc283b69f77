// SPDX-License-Identifier: Apache-2.0

#include "tests/exhaustive.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "tests/seed.h"

namespace spillway {
namespace {

TEST(Exhaustive, ThePointsOfTwoDimensionsAreDrawnIndependently) {
  const uint64_t first = test::Seed();
  std::array<std::array<int, 3>, 2> drawn{};
  constexpr int kSeeds = 1200;
  for (uint64_t seed = first; seed != first + kSeeds; ++seed) {
    const size_t one = PointOf(seed, 10, 2);
    EXPECT_EQ(PointOf(seed, 10, 2), one);
    ++drawn.at(one).at(PointOf(seed, 11, 3));
  }
  // Each count has a mean of 200 and a standard deviation of 13.
  for (const auto& row : drawn) {
    for (const int count : row) EXPECT_NEAR(count, kSeeds / 6, 100);
  }
}

}  // namespace
}  // namespace spillway
