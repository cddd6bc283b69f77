// SPDX-License-Identifier: Apache-2.0
//
// A benchmark of the tiers as text for a terminal and as JSON for programs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_REPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_REPORT_H_

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/spillway/bench/tiers/bench.h"

namespace spillway::bench_tiers {

// Returns {"v":1,"rows":[{"edge","block_bytes","bytes_per_second","ceiling_bytes_per_second",
// "share",...}],"machine":{...}}. Rates are medians, and `share` is the median of the rounds'
// shares. `commit` is the build's.
nlohmann::ordered_json ToJson(const BenchReport& report, std::string_view commit);

// Returns the rows as lines, with the machine above them and the doubts below.
std::string ToTable(const BenchReport& report, std::string_view commit);

}  // namespace spillway::bench_tiers

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TIERS_REPORT_H_
