// SPDX-License-Identifier: Apache-2.0
//
// A benchmark of the update as text for a terminal and as JSON for programs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_REPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_REPORT_H_

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/spillway/bench/update/bench.h"

namespace spillway::bench_update {

// Returns {"v":1,"rows":[{"optimizer","momentum","state_format","where","parameters_per_second",
// "limit_parameters_per_second","limit","read_bytes_per_parameter","written_bytes_per_parameter",
// "share","lowest_share","highest_share","rounds",...}],"machine":{...}}. Rates are medians, the
// limit is the lesser of the medians, and `share` is the median of the rounds' shares of it.
//
// Rows of NVMe also have both limits, "fio_parameters_per_second" (null if there is no fio) and
// "kernel_hash_parameters_per_second", the number of rounds that fio did, "fio_rounds", which are
// fewer than "rounds" if it failed, and the operating system's count of the last pass,
// "kernel_read_bytes_per_parameter" and "kernel_written_bytes_per_parameter" (null if it has no
// count). Bytes are those of weights and state, and in rows of NVMe also those of gradients if
// "gradients" is "nvme" and not "memory". The limit of rows of memory counts the gradients' bytes
// as well. `commit` is the build's.
nlohmann::ordered_json ToJson(const BenchReport& report, std::string_view commit);

// Returns the rows as lines, with the machine above them and the doubts below.
std::string ToTable(const BenchReport& report, std::string_view commit);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_REPORT_H_
