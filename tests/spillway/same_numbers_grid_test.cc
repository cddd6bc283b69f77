// SPDX-License-Identifier: Apache-2.0
//
// Every way for the bytes to go, in budgets some of which are random.

#include "gtest/gtest.h"
#include "tests/seed.h"
#include "tests/spillway/same_numbers.h"

namespace spillway::test {
namespace {

TEST(SameNumbers, OfEveryWay) { ExpectSameNumbers(AllWays(), Seed()); }

}  // namespace
}  // namespace spillway::test
