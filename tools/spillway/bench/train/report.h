// SPDX-License-Identifier: Apache-2.0
//
// A benchmark of training as text for a terminal and as JSON for programs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_REPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_REPORT_H_

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/spillway/bench/train/bench.h"

namespace spillway::bench_train {

// Returns {"v":1,"rows":[{"model","parameters","where","tokens_per_second","step_seconds",
// "walk_seconds","update_seconds","computing_seconds","transfer_seconds","waiting_seconds",
// "lease_seconds","operations":{NAME:{...}},...}],"device","machine":{...}}. A row that was not
// measured has "skipped" instead. An operation has "calls" and "seconds", and "flops_per_second"
// with "share_of_product", or "bytes_per_second" with "share_of_copy".
nlohmann::ordered_json ToJson(const BenchReport& report, std::string_view commit);

// Returns the rows as lines, with the machine above them, and each row's operations below it.
std::string ToTable(const BenchReport& report, std::string_view commit);

}  // namespace spillway::bench_train

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_TRAIN_REPORT_H_
