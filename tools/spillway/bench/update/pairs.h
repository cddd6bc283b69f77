// SPDX-License-Identifier: Apache-2.0
//
// Which rules and formats of their state there are to measure, by name.

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

// The pairs that exist of these names; no names are all. A rule that can go without a momentum is
// listed twice: without, and with one of 0.9. InvalidArgument: a name that is not known, or no pair
// that exists.
absl::StatusOr<std::vector<RuleFormats>> FindPairs(const std::vector<std::string>& optimizers,
                                                   const std::vector<std::string>& formats);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PAIRS_H_
