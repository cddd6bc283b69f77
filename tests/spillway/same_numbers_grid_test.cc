// SPDX-License-Identifier: Apache-2.0
//
// Every way for the bytes to go. Budgets that are random have a seed, printed.

#include "gtest/gtest.h"
#include "tests/spillway/same_numbers.h"

namespace spillway::test {
namespace {

TEST(SameNumbers, OfEveryWay) { ExpectSameNumbers(AllWays(), PrintedSeed()); }

}  // namespace
}  // namespace spillway::test
