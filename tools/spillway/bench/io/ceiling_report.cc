// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/spillway/bench/io/ceiling.h"

namespace spillway::bench_io {
namespace {

using Json = nlohmann::ordered_json;

const char* NameOf(io::IoOp op) { return op == io::IoOp::kRead ? "read" : "write"; }

Json RowJson(const CeilingRow& row) {
  return {{"op", NameOf(row.op)},
          {"hash_threads", row.hash_threads},
          {"bytes_per_second", row.bytes_per_second},
          {"memory_hash_bytes_per_second", row.memory_hash_bytes_per_second},
          {"hash_cpu_seconds_per_gib", row.hash_cpu_seconds_per_gib},
          {"bookkeeping_cpu_seconds_per_gib", row.bookkeeping_cpu_seconds_per_gib},
          {"submission_cpu_seconds_per_gib", row.submission_cpu_seconds_per_gib},
          {"gain", row.gain},
          {"memory_hash_gain", row.memory_hash_gain}};
}

}  // namespace

Json ToJson(const CeilingReport& report, std::string_view commit) {
  Json json = {{"v", 1}};
  json["rows"] = Json::array();
  for (const CeilingRow& row : report.rows) json["rows"].push_back(RowJson(row));
  json["machine"] = {{"cpu", report.machine.cpu},
                     {"cpus", report.machine.num_cpus},
                     {"kernel", report.machine.kernel},
                     {"load", report.machine.load}};
  json["commit"] = commit;
  return json;
}

std::string ToTable(const CeilingReport& report, std::string_view commit) {
  const Machine& machine = report.machine;
  std::string text =
      absl::StrFormat("%s, %d CPUs, kernel %s, load %.1f, commit %s\n", machine.cpu,
                      machine.num_cpus, machine.kernel, machine.load, std::string(commit));
  absl::StrAppend(
      &text,
      "The page store over an I/O engine that completes at once and moves nothing: devices whose\n"
      "rates add up to less are fed at full rate.\n\n"
      "op     hashing threads   GB/s  gain   hashing alone GB/s  gain   CPU s/GiB: hashing  "
      "bookkeeping  submission\n");
  for (const CeilingRow& row : report.rows) {
    absl::StrAppend(
        &text,
        absl::StrFormat("%-5s  %15d  %5.2f  %4.2f  %19.2f  %4.2f  %19.4f  %11.4f  %10.4f\n",
                        NameOf(row.op), row.hash_threads, row.bytes_per_second / 1e9, row.gain,
                        row.memory_hash_bytes_per_second / 1e9, row.memory_hash_gain,
                        row.hash_cpu_seconds_per_gib, row.bookkeeping_cpu_seconds_per_gib,
                        row.submission_cpu_seconds_per_gib));
  }
  return text;
}

}  // namespace spillway::bench_io
