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

struct Prices {
  double bound_bytes = 0;  // no way of keeping within the capacity moves fewer
  // By use: how much of its gap is kept, from 0 to 1, in the mean over what is best at the last
  // prices; near the relaxation's best.
  std::vector<float> share;
};

// `reached_bytes`: what some way of keeping moves; the nearer to the best, the faster the search.
// More rounds, or times at which room has a price, give a tighter bound; any give a true one.
struct PriceOptions {
  uint64_t reached_bytes = 0;
  int rounds = 300;
  uint32_t max_times = 512;
};
Prices FindPrices(const Keeping& keeping, uint64_t capacity, PriceOptions options);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PRICES_H_
