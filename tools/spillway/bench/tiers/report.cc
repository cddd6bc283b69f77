// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/tiers/report.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_tiers {
namespace {

using Json = nlohmann::ordered_json;
using bench_io::Summary;

constexpr double kGb = 1e9;

template <typename F>
Summary Of(const Row& row, const F& value) {
  std::vector<double> values;
  for (const Sample& sample : row.samples) values.push_back(value(sample));
  return bench_io::Summarize(values);
}
Summary Rate(const Row& row) {
  return Of(row, [](const Sample& sample) { return sample.bytes_per_second; });
}
Summary Ceiling(const Row& row) {
  return Of(row, [](const Sample& sample) { return sample.ceiling_bytes_per_second; });
}
Summary Nvme(const Row& row) {
  return Of(row, [](const Sample& sample) { return sample.nvme_bytes_per_second; });
}
Summary Share(const Row& row) {
  return Of(row, [](const Sample& sample) {
    return sample.bytes_per_second / sample.ceiling_bytes_per_second;
  });
}

constexpr char kCached[] = "page cache: the device was not measured";

}  // namespace

Json ToJson(const BenchReport& report, std::string_view commit) {
  Json json = {{"v", 1}};
  json["rows"] = Json::array();
  for (const Row& row : report.rows) {
    const Summary share = Share(row);
    Json entry = {{"edge", NameOf(row.edge)},
                  {"block_bytes", report.block_bytes},
                  {"bytes_per_second", Rate(row).median},
                  {"ceiling_bytes_per_second", Ceiling(row).median},
                  {"share", share.median},
                  {"lowest_share", share.low},
                  {"highest_share", share.high},
                  {"rounds", row.samples.size()},
                  {"beside_nvme", row.beside_nvme}};
    if (row.beside_nvme) entry["nvme_bytes_per_second"] = Nvme(row).median;
    json["rows"].push_back(std::move(entry));
  }
  const bench_io::Machine& machine = report.machine;
  const bench_io::Volume& volume = machine.volumes.front();
  json["doubts"] = report.cached ? Json::array({kCached}) : Json::array();
  json["machine"] = {{"cpu", machine.cpu},
                     {"cpus", machine.num_cpus},
                     {"kernel", machine.kernel},
                     {"load", machine.load},
                     {"device", report.device},
                     {"folder", volume.folder},
                     {"filesystem", volume.file_system},
                     {"drive", volume.device},
                     {"model", volume.model},
                     {"io_engine", report.io_engine}};
  json["commit"] = commit;
  return json;
}

std::string ToTable(const BenchReport& report, std::string_view commit) {
  const bench_io::Machine& machine = report.machine;
  const bench_io::Volume& volume = machine.volumes.front();
  std::string text = absl::StrFormat(
      "%s, %d CPUs, kernel %s, load %.1f, commit %s\ndevice: %s; %s: %s on %s, %s; blocks of "
      "%s\n\n",
      machine.cpu, machine.num_cpus, machine.kernel, machine.load, std::string(commit),
      report.device, volume.folder, volume.file_system, volume.device, report.io_engine,
      base::FormatBytes(report.block_bytes));
  absl::StrAppend(&text, "edge                          GB/s  ceiling  share  (rounds)\n");
  for (const Row& row : report.rows) {
    const Summary share = Share(row);
    absl::StrAppend(
        &text, absl::StrFormat("%-14s %-12s %7.2f  %7.2f   %.2f  (%.2f-%.2f)",
                               std::string(NameOf(row.edge)), row.beside_nvme ? "beside NVMe" : "",
                               Rate(row).median / kGb, Ceiling(row).median / kGb, share.median,
                               share.low, share.high));
    if (row.beside_nvme) {
      absl::StrAppend(&text, absl::StrFormat("  NVMe %.2f GB/s", Nvme(row).median / kGb));
    }
    absl::StrAppend(&text, "\n");
  }
  if (report.cached) absl::StrAppend(&text, "not to be believed: ", kCached, "\n");
  return text;
}

}  // namespace spillway::bench_tiers
