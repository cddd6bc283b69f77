// SPDX-License-Identifier: Apache-2.0
//
// The policies that choose the gaps through which a tier retains its tiles. kPlanned uses the whole
// period and the prices of room; the others are for comparison.

#ifndef SPILLWAY_PLAN_POLICIES_H_
#define SPILLWAY_PLAN_POLICIES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/plan/retention.h"

namespace spillway::plan {

enum class Policy : uint8_t {
  kPlanned,  // retains what saves most bytes for its room
  kLru,      // retains what was used last
  kFifo,     // retains what came in last
  kPrefix,   // retains a fixed set, in order of first use; others leave after each use
  kNone,     // retains nothing
};
inline constexpr int kNumPolicies = 5;
std::string_view Name(Policy policy);

// Returns good sets of gaps to retain, the best first. In each, uses and retained gaps fit in
// `capacity` bytes. kPlanned returns several sets unless the period is long, since placing frames
// costs each of them a different amount. The other policies return one set.
std::vector<Retained> WaysToRetain(Policy policy, const Retention& retention, uint64_t capacity);
// Retains every gap in which the tile has bytes. It is for a tier that has no tier below.
Retained RetainAll(const Retention& retention);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_KEEP_H_
