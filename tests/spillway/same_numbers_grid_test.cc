// SPDX-License-Identifier: Apache-2.0
//
// Every way for the bytes to go: precision × page size × I/O engine × folders × budgets ×
// checkpointing × cut.

#include "gtest/gtest.h"
#include "tests/spillway/same_numbers.h"

namespace spillway::test {
namespace {

TEST(SameNumbers, OfEveryWay) {
  const Numbers fp32 = NumbersInMemory("fp32");
  const Numbers amp = NumbersInMemory("fp16-amp");
  for (const Way& way : AllWays()) ExpectSameNumbers(way, way.precision == "fp32" ? fp32 : amp);
}

}  // namespace
}  // namespace spillway::test
