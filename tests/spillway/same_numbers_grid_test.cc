// SPDX-License-Identifier: Apache-2.0
//
// Every way for the bytes to move. Some of the budgets are random. SPILLWAY_TEST_PART=2/4 runs the
// second of four parts. Each part has about a quarter of the ways.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "tests/seed.h"
#include "tests/spillway/same_numbers.h"

namespace spillway::test {
namespace {

TEST(SameNumbers, OfEveryWay) {
  unsigned part = 1, parts = 1;
  if (const char* const given = std::getenv("SPILLWAY_TEST_PART")) {
    ASSERT_EQ(std::sscanf(given, "%u/%u", &part, &parts), 2) << given;
    ASSERT_TRUE(part >= 1 && part <= parts) << given;
  }
  const std::vector<Way> all = AllWays();
  std::vector<Way> ways;
  for (size_t i = part - 1; i < all.size(); i += parts) ways.push_back(all[i]);
  ASSERT_FALSE(ways.empty());
  ExpectSameNumbers(ways, Seed());
}

}  // namespace
}  // namespace spillway::test
