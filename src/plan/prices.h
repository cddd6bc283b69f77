// SPDX-License-Identifier: Apache-2.0
//
// What room in a tier is worth at each time: the prices of MODEL.md's relaxation. One search serves
// two ends. Its value is a number of bytes that no way of keeping beats, and what is kept at those
// prices tells the planner what to keep.

#ifndef SPILLWAY_PLAN_PRICES_H_
#define SPILLWAY_PLAN_PRICES_H_

#include <cstdint>
#include <vector>

#include "src/plan/keeping.h"

namespace spillway::plan {

// No way of keeping within the capacity moves fewer bytes. At more times at which room has a price
// the bound is tighter; it is true with any.
double LeastBytes(const Keeping& keeping, uint64_t capacity, uint32_t max_times);

// By use: how much of its gap is kept, from 0 to 1, where keeping costs least.
std::vector<float> KeptShares(const Keeping& keeping, uint64_t capacity, uint32_t max_times);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PRICES_H_
