// SPDX-License-Identifier: Apache-2.0
//
// The prices of room in a tier at each time of the period, from MODEL.md's relaxation. One search
// gives two results: a lower bound on the bytes of every way of retaining, and the share of each
// gap that is retained at those prices, which guides the planner.

#ifndef SPILLWAY_PLAN_PRICES_H_
#define SPILLWAY_PLAN_PRICES_H_

#include <cstdint>
#include <vector>

#include "src/plan/retention.h"
#include "src/plan/stop.h"

namespace spillway::plan {

// Returns the largest number of positions of the period at which room has a price. The bound is
// valid with any number. It is tighter with more of them if tiles are used often, since a gap
// should contain several. The time of the search grows with the cube of the number.
uint32_t MostTimes(const Retention& retention);

// Returns a number of bytes such that no way of retaining within the capacity moves fewer.
double LeastBytes(const Retention& retention, uint64_t capacity, uint32_t most_times = UINT32_MAX);

// Returns, by use, the share of its gap that is retained, from 0 to 1, in the least-cost solution
// at the prices found. Once `stop` is true, it returns soon, with shares that are not used.
std::vector<float> KeptShares(const Retention& retention, uint64_t capacity, uint32_t max_times,
                              Stop stop = {});

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PRICES_H_
