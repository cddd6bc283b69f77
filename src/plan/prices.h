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

// At how many times of the period room has a price, at most. The bound is true with any number, and
// tighter with more where tiles are used often: a gap should see several. The search takes time
// with their cube.
uint32_t MostTimes(const Keeping& keeping);

// No way of keeping within the capacity moves fewer bytes.
double LeastBytes(const Keeping& keeping, uint64_t capacity);

// By use: how much of its gap is kept, from 0 to 1, where keeping costs least.
std::vector<float> KeptShares(const Keeping& keeping, uint64_t capacity, uint32_t max_times);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PRICES_H_
