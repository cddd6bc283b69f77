// SPDX-License-Identifier: Apache-2.0

#include "src/base/check.h"

#include <gtest/gtest.h>

namespace spillway::base {
namespace {

TEST(Check, AKeptInvariantDoesNothing) { SPILLWAY_CHECK(1 + 1 == 2); }

TEST(CheckDeathTest, ABrokenOneSaysWhereAndWhat) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(SPILLWAY_CHECK(1 + 1 == 3),
               "check_test\\.cc:[0-9]+: broken invariant: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace spillway::base
