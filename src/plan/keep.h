// SPDX-License-Identifier: Apache-2.0
//
// The policies: which gaps a tier keeps. Planned knows the future and the prices; the others are
// for comparison.

#ifndef SPILLWAY_PLAN_KEEP_H_
#define SPILLWAY_PLAN_KEEP_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/plan/keeping.h"

namespace spillway::plan {

enum class Policy : uint8_t {
  kPlanned,  // what saves most for its room
  kLru,      // what was used last
  kFifo,     // what came last
  kPrefix,   // a fixed part, in the order of first use; the rest leaves after each use
  kNone,     // nothing
};
inline constexpr int kNumPolicies = 5;
std::string_view Name(Policy policy);
std::optional<Policy> ParsePolicy(std::string_view name);

// Good ways to keep within `capacity` bytes for uses and what is kept, the best first: of kPlanned
// several, unless the period is long, since placing frames costs each something else; of others
// one.
std::vector<Kept> WaysToKeep(Policy policy, const Keeping& keeping, uint64_t capacity);
// Every gap in which the tile has bytes: of a tier without one below.
Kept KeepAll(const Keeping& keeping);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_KEEP_H_
