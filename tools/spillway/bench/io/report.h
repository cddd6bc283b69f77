// SPDX-License-Identifier: Apache-2.0
//
// A benchmark's report as text for a terminal, as JSON for programs, and as a page with a picture.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_REPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_REPORT_H_

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/spillway/bench/io/bench.h"

namespace spillway::bench_io {

// Returns {"v":1,"rows":[...],"machine":{...}}; tools/spillway/bench/README.md names the members.
// `commit` is the build's.
nlohmann::ordered_json ToJson(const BenchReport& report, std::string_view commit);

// Returns the rows as lines, with the machine above them and the doubts below.
std::string ToTable(const BenchReport& report, std::string_view commit);

// Returns a self-contained page: the rates as bars beside fio's, and every figure as a table.
std::string ToHtml(const BenchReport& report, std::string_view commit);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_REPORT_H_
