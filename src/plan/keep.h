// SPDX-License-Identifier: Apache-2.0
//
// The policies that choose the gaps through which a tier keeps its tiles. kPlanned uses the whole
// period and the prices of room; the others are for comparison.

#ifndef SPILLWAY_PLAN_KEEP_H_
#define SPILLWAY_PLAN_KEEP_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/plan/keeping.h"

namespace spillway::plan {

enum class Policy : uint8_t {
  kPlanned,  // keeps what saves most bytes for its room
  kLru,      // keeps what was used last
  kFifo,     // keeps what came in last
  kPrefix,   // keeps a fixed set, in order of first use; others leave after each use
  kNone,     // keeps nothing
};
inline constexpr int kNumPolicies = 5;
std::string_view Name(Policy policy);

// Returns good sets of gaps to keep, the best first. In each, uses and kept gaps fit in `capacity`
// bytes. kPlanned returns several sets unless the period is long, since placing frames costs each
// of them a different amount. The other policies return one set.
std::vector<Kept> WaysToKeep(Policy policy, const Keeping& keeping, uint64_t capacity);
// Keeps every gap in which the tile has bytes. It is for a tier that has no tier below.
Kept KeepAll(const Keeping& keeping);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_KEEP_H_
