// SPDX-License-Identifier: Apache-2.0
//
// Finds by name the rules to measure, and the formats of their state.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PAIRS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PAIRS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/optimizer.h"

namespace spillway::bench_update {

// A rule and the formats in which its state can rest.
struct RuleFormats {
  Rule rule;
  std::vector<StateFormat> formats;
};

// Returns the existing pairs of rules and formats with these names; an empty list stands for all
// names. A rule whose momentum is optional is listed twice: with no momentum, and with a momentum
// of 0.9. InvalidArgument if a name is unknown or no pair exists.
absl::StatusOr<std::vector<RuleFormats>> FindPairs(const std::vector<std::string>& optimizers,
                                                   const std::vector<std::string>& formats);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PAIRS_H_
