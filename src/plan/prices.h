// SPDX-License-Identifier: Apache-2.0
//
// What room in a tier is worth at each time: the prices of MODEL.md's relaxation. One search serves
// two ends. Its value is a number of bytes that no way of keeping beats, and its prices tell the
// planner which gaps are worth their room.

#ifndef SPILLWAY_PLAN_PRICES_H_
#define SPILLWAY_PLAN_PRICES_H_

#include <cstdint>
#include <vector>

#include "src/plan/keeping.h"

namespace spillway::plan {

struct Prices {
  double bound_bytes = 0;  // no way of keeping within the capacity moves fewer
  std::vector<float> gap;  // by use: what a byte kept through its gap costs, in bytes moved
};

// `reached_bytes`: what some way of keeping moves; the nearer to the best, the faster the search.
// More rounds, or times at which room has a price, give a tighter bound; any give a true one.
struct PriceOptions {
  uint64_t reached_bytes = 0;
  int rounds = 60;
  uint32_t max_times = 2048;
};
Prices FindPrices(const Keeping& keeping, uint64_t capacity, const PriceOptions& options);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PRICES_H_
