// SPDX-License-Identifier: Apache-2.0
//
// A seeded sample of the ways for the bytes to move, and one way for each policy, placement and
// accumulation order. same_numbers_grid_test.cc runs all ways.

#include "tests/spillway/same_numbers.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"

namespace spillway::test {
namespace {

constexpr size_t kSample = 8;

TEST(SameNumbers, OfASampleOfWays) {
  const uint64_t seed = Seed();
  std::vector<Way> ways = AllWays();
  std::shuffle(ways.begin(), ways.end(), std::mt19937_64(seed));
  ways.resize(std::max<size_t>(kSample / SampleShare(), 2));
  ExpectSameNumbers(ways, seed);
}

// The numbers do not depend on where roles are placed or on the accumulation order.
TEST(SameNumbers, OfEachPlacementAndOrderInTheSmallestBudgets) {
  const Numbers expected = NumbersInMemory("fp16-amp");
  std::mt19937_64 unused;
  for (const auto& [name, choices] : Choices()) {
    if (name != "--place" && name != "--accumulation-order") continue;
    for (size_t i = 1; i < choices.size(); ++i) {
      Way way = FirstWay();
      way["--precision"] = "fp16-amp";
      way[name] = choices[i];
      const Json json = ExpectSameNumbers(way, expected, unused);
      ASSERT_FALSE(HasFailure());
      EXPECT_EQ(json.at("accumulation").at("order"), way["--accumulation-order"]);
      EXPECT_EQ(json.at("placement").empty(), name != "--place");
    }
  }
}

class SameNumbersOfPolicy : public ::testing::TestWithParam<std::string> {};

// The numbers are the same with a plan and on demand.
TEST_P(SameNumbersOfPolicy, InTheSmallestBudgets) {
  Way way = FirstWay();
  way["--policy"] = GetParam();
  std::mt19937_64 unused;
  const Json json = ExpectSameNumbers(way, NumbersInMemory(way.at("--precision")), unused);
  if (HasFailure()) return;
  const Json plan = json.at("plan");
  if (GetParam() == "demand") {
    EXPECT_EQ(plan["plans"], 0);
    return;
  }
  EXPECT_GE(plan["steps"], 2) << plan;
  EXPECT_EQ(plan["moved_bytes"], plan["planned_bytes"]);
}

INSTANTIATE_TEST_SUITE_P(Policies, SameNumbersOfPolicy, ::testing::Values("planned", "demand"),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace spillway::test
