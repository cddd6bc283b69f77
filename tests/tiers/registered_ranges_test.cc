// SPDX-License-Identifier: Apache-2.0
//
// Tests that a copy ends where its range of registered memory ends.

#include "tiers/registered_ranges.h"

#include <gtest/gtest.h>

#include <array>

namespace spillway::tiers {
namespace {

TEST(RegisteredRanges, ACopyEndsWhereItsRangeDoes) {
  const std::array<std::byte, 64> memory = {};
  const std::byte* const start = memory.data();
  RegisteredRanges ranges;
  EXPECT_EQ(ranges.CopyBytes(start, 64), 64u) << "none is registered";
  ranges.Add({start + 8, 16});
  ranges.Add({start + 24, 16});
  EXPECT_EQ(ranges.CopyBytes(start + 8, 32), 16u) << "from a range's start into the next";
  EXPECT_EQ(ranges.CopyBytes(start + 23, 32), 1u) << "from a range's last byte";
  EXPECT_EQ(ranges.CopyBytes(start + 24, 16), 16u) << "a whole range";
  EXPECT_EQ(ranges.CopyBytes(start + 30, 4), 4u) << "within a range";
  EXPECT_EQ(ranges.CopyBytes(start + 40, 8), 8u) << "behind the last";
  EXPECT_EQ(ranges.CopyBytes(start, 8), 8u) << "before the first";
  ranges.Remove(start + 8);
  EXPECT_EQ(ranges.CopyBytes(start + 8, 16), 16u) << "no longer registered";
}

}  // namespace
}  // namespace spillway::tiers
