// SPDX-License-Identifier: Apache-2.0

#include "src/plan/range_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace spillway::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> In(const RangeMap<int>& map, uint64_t begin, uint64_t end) {
  std::vector<int> values;
  map.ForRange(begin, end, [&](int value) { values.push_back(value); });
  return values;
}

TEST(RangeMap, HasWhatWasSetLast) {
  RangeMap<int> map;
  map.Set(10, 20, 1);
  map.Set(20, 30, 2);
  EXPECT_THAT(In(map, 0, 10), IsEmpty());
  EXPECT_THAT(In(map, 15, 25), ElementsAre(1, 2));
  map.Set(12, 22, 3);  // cuts both
  EXPECT_THAT(In(map, 0, 40), ElementsAre(1, 3, 2));
  EXPECT_THAT(In(map, 10, 12), ElementsAre(1));
  EXPECT_THAT(In(map, 22, 30), ElementsAre(2));
  map.Set(14, 16, 4);  // cuts one range in two
  EXPECT_THAT(In(map, 0, 40), ElementsAre(1, 3, 4, 3, 2));
  map.Set(14, 16, 5);
  EXPECT_THAT(In(map, 13, 17), ElementsAre(3, 5, 3));
  map.Set(0, 40, 6);
  EXPECT_THAT(In(map, 0, 40), ElementsAre(6));
}

}  // namespace
}  // namespace spillway::plan
