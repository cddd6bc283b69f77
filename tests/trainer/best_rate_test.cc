// SPDX-License-Identifier: Apache-2.0
//
// Tests how long the peak of the machine is measured, on times of rounds that the test gives.

#include "tools/trainer/compute/best_rate.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace spillway::trainer {
namespace {

constexpr double kOperations = 1e6;

// Counts the rounds, and adds up the seconds that `seconds_at` gives each by those before it.
struct Rounds {
  explicit Rounds(std::function<double(const Rounds&)> seconds_at) : next(std::move(seconds_at)) {}

  double Best() {
    return BestRate(kOperations, [this] {
      const double took = next(*this);
      spent += took;
      ++count;
      return took;
    });
  }

  std::function<double(const Rounds&)> next;
  int count = 0;
  double spent = 0;
};

TEST(BestRate, OfAMachineThatIsSlowAtFirstIsTheLaterRate) {
  for (const double slow : {0.010, 0.020, 0.060, 0.300}) {
    Rounds rounds([slow](const Rounds& so_far) { return so_far.spent < 0.060 ? slow : 0.002; });
    EXPECT_DOUBLE_EQ(rounds.Best(), kOperations / 0.002) << slow;
  }
}

TEST(BestRate, TheFirstRoundDoesNotCount) {
  Rounds rounds([](const Rounds& so_far) { return so_far.count == 0 ? 0.001 : 0.002; });
  EXPECT_DOUBLE_EQ(rounds.Best(), kOperations / 0.002);
}

TEST(BestRate, OfASteadyMachineTakesNineRounds) {
  Rounds rounds([](const Rounds&) { return 0.002; });
  EXPECT_DOUBLE_EQ(rounds.Best(), kOperations / 0.002);
  EXPECT_EQ(rounds.count, 1 + 8);
}

// Each of 40 rounds takes 6% less than the one before.
TEST(BestRate, GoesOnWhileItImproves) {
  Rounds rounds([seconds = 0.020](const Rounds& so_far) mutable {
    return so_far.count < 40 ? seconds /= 1.06 : seconds;
  });
  rounds.Best();
  EXPECT_EQ(rounds.count, 40 + 5);
  EXPECT_LT(rounds.spent, 0.5);
}

TEST(BestRate, EndsAfterHalfASecondWithAtLeastOneRate) {
  Rounds slow([](const Rounds&) { return 0.125; });
  EXPECT_DOUBLE_EQ(slow.Best(), kOperations / 0.125);
  EXPECT_EQ(slow.count, 4);
  Rounds slowest([](const Rounds&) { return 3.0; });
  EXPECT_DOUBLE_EQ(slowest.Best(), kOperations / 3);
  EXPECT_EQ(slowest.count, 2);
}

TEST(BestRate, OfRoundsThatTakeNoTimeIsFinite) {
  Rounds rounds([](const Rounds&) { return 0.0; });
  EXPECT_DOUBLE_EQ(rounds.Best(), kOperations / 1e-9);
}

}  // namespace
}  // namespace spillway::trainer
