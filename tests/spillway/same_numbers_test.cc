// SPDX-License-Identifier: Apache-2.0
//
// A seeded sample of the ways for the bytes to go; same_numbers_grid_test.cc takes them all. The
// seed is printed and SPILLWAY_TEST_SEED sets it.

#include "tests/spillway/same_numbers.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "gtest/gtest.h"

namespace spillway::test {
namespace {

constexpr size_t kSample = 8;

TEST(SameNumbers, OfASampleOfWays) {
  const char* const given = std::getenv("SPILLWAY_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::cout << "SPILLWAY_TEST_SEED=" << seed << "\n";
  std::vector<Way> ways = AllWays();
  std::shuffle(ways.begin(), ways.end(), std::mt19937_64(seed));
  ways.resize(kSample);
  const Numbers fp32 = NumbersInMemory("fp32");
  const Numbers amp = NumbersInMemory("fp16-amp");
  ASSERT_EQ(fp32.steps.size(), 6U);
  EXPECT_NE(fp32, amp);
  for (const Way& way : ways) ExpectSameNumbers(way, way.precision == "fp32" ? fp32 : amp);
}

// Where roles rest is nothing to the numbers.
TEST(SameNumbers, OfPlacements) {
  const Numbers expected = NumbersInMemory("fp16-amp");
  for (const Arguments& placed :
       {Arguments{"--place", "optimizer=nvme,gradients=pinned,parameters=device"},
        Arguments{"--place", "parameters=nvme,gradients=nvme", "--activation-tier", "nvme"},
        Arguments{"--place", "optimizer=pinned", "--activation-tier", "pinned"},
        Arguments{"--place", "gradients=device,moments=nvme", "--policy", "demand"},
        Arguments{"--activation-tier", "nvme", "--policy", "lru", "--checkpoint-activations",
                  "on"}}) {
    SCOPED_TRACE(placed[1] + " " + placed.back());
    const Training training;
    const Ended ended =
        RunCommand(StepsOf(training, "fp16-amp") + Arguments{"--store", training.store()} + placed);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(training.NumbersOf(ended.json()), expected);
    EXPECT_FALSE(ended.json().at("placement").empty());
  }
}

}  // namespace
}  // namespace spillway::test
