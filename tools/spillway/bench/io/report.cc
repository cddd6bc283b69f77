// SPDX-License-Identifier: Apache-2.0
//
// Makes the JSON and the table. report_html.cc makes the HTML page.

#include "tools/spillway/bench/io/report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/calibration.h"
#include "src/base/bytes.h"

namespace spillway::bench_io {
namespace {

using Json = nlohmann::ordered_json;

Json SummaryJson(const Summary& summary) {
  return {{"median", summary.median}, {"low", summary.low}, {"high", summary.high}};
}

Json RowJson(const Row& row, const BenchReport& report) {
  const Machine& machine = report.machine;
  const RowSpec& spec = row.spec;
  const Summary rate = Rate(row.ours);
  const bool has_fio = !row.fio.empty();
  Json json = {{"op", NameOf(spec.op)},
               {"pattern", NameOf(spec.pattern)},
               {"block_bytes", spec.block_bytes},
               {"depth", spec.depth},
               {"checksums", HasChecksums(spec)},
               {"memory_bytes", spec.memory_bytes},
               {"bytes_per_second", rate.median},
               {"fio_bytes_per_second", has_fio ? Json(Rate(row.fio).median) : Json()},
               {"through", spec.through == Through::kStore ? "store" : "file"},
               {"engine", spec.through == Through::kPosixFile ? "posix" : report.io_engine},
               {"first_touch", spec.first_touch},
               {"memory_pages", NameOf(row.pages)},
               {"rounds", row.ours.size()},
               {"lowest_bytes_per_second", rate.low},
               {"highest_bytes_per_second", rate.high},
               {"latency_seconds",
                {{"p50", Quantile(row.latency_seconds, 0.5)},
                 {"p99", Quantile(row.latency_seconds, 0.99)},
                 {"p99_9", Quantile(row.latency_seconds, 0.999)}}},
               {"cpu_seconds_per_gib", CpuSecondsPerGib(row.ours)},
               {"checksum_cpu_seconds_per_gib", ChecksumSecondsPerGib(row.ours)},
               {"doubts", Doubts(row, machine.copy_bytes_per_second, machine.num_cpus)}};
  if (!row.without_checksums.empty()) {
    json["without_checksums"] = {{"bytes_per_second", Rate(row.without_checksums).median},
                                 {"cpu_seconds_per_gib", CpuSecondsPerGib(row.without_checksums)}};
  }
  if (has_fio) {
    json["fio_rounds"] = row.fio.size();
    json["fio_depth"] = row.fio_depth;
    json["fio_memory_bytes"] = uint64_t{spec.block_bytes} * static_cast<uint64_t>(row.fio_depth);
    json["fio_memory_pages"] = row.fio_huge_pages ? "huge" : "plain";
    json["fio_cpu_seconds_per_gib"] = CpuSecondsPerGib(row.fio);
    json["share_of_fio"] = SummaryJson(ShareOfFio(row, row.fio));
  }
  if (!row.fio_beside_hashing.empty()) {
    json["fio_beside_hashing"] = {{"bytes_per_second", Rate(row.fio_beside_hashing).median},
                                  {"share", SummaryJson(ShareOfFio(row, row.fio_beside_hashing))}};
  }
  if (const ShareOfLimit limit = CompareWithLimit(row); limit.limit != Limit::kNone) {
    json["limit"] = NameOf(limit.limit);
    json["limit_bytes_per_second"] = limit.limit_bytes_per_second;
    json["share_of_limit"] = SummaryJson(limit.share);
  }
  if (!row.hash_bytes_per_second.empty()) {
    json["hash_bytes_per_second"] = Summarize(row.hash_bytes_per_second).median;
  }
  return json;
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g", seconds * 1e3); }

std::string RowLine(const Row& row) {
  const RowSpec& spec = row.spec;
  const double rate = Rate(row.ours).median;
  std::string line = absl::StrFormat(
      "%-5s %-10s %7s %4d  %-10s %s %7.2f %7.2f  %7s %7s %7s  %9.4f %5.3f",
      std::string(NameOf(spec.op)), std::string(NameOf(spec.pattern)),
      base::FormatBytes(spec.block_bytes), spec.depth, std::string(NameOf(spec.through)),
      spec.first_touch                ? "first"
      : row.pages == PageKind::kPlain ? "plain"
                                      : "     ",
      rate / kGb, rate / kGiB, Milliseconds(Quantile(row.latency_seconds, 0.5)),
      Milliseconds(Quantile(row.latency_seconds, 0.99)),
      Milliseconds(Quantile(row.latency_seconds, 0.999)), CpuSecondsPerGib(row.ours),
      ChecksumSecondsPerGib(row.ours));
  const bool has_without = !row.without_checksums.empty();
  absl::StrAppend(&line, has_without
                             ? absl::StrFormat("  %7.4f", CpuSecondsPerGib(row.without_checksums))
                             : std::string(9, ' '));
  if (row.fio.empty()) return line;
  const ShareOfLimit limit = CompareWithLimit(row);
  absl::StrAppend(
      &line,
      absl::StrFormat("  %7.2f %5d %7.4f  %-4s %6.2f  %.2f", Rate(row.fio).median / kGb,
                      row.fio_depth, CpuSecondsPerGib(row.fio), std::string(NameOf(limit.limit)),
                      limit.limit_bytes_per_second / kGb, limit.share.median));
  if (row.ours.size() > 1) {
    absl::StrAppend(&line, absl::StrFormat(" (%.2f-%.2f)", limit.share.low, limit.share.high));
  }
  if (!row.fio_beside_hashing.empty()) {
    absl::StrAppend(
        &line, absl::StrFormat("  hashing %.2f  %.2f", Rate(row.fio_beside_hashing).median / kGb,
                               ShareOfFio(row, row.fio_beside_hashing).median));
  }
  return line;
}

}  // namespace

Json ToJson(const BenchReport& report, std::string_view commit) {
  const Machine& machine = report.machine;
  Json json = {{"v", 1}};
  json["rows"] = Json::array();
  for (const Row& row : report.rows) json["rows"].push_back(RowJson(row, report));
  Json volumes = Json::array();
  for (size_t i = 0; i < machine.volumes.size(); ++i) {
    const Volume& volume = machine.volumes[i];
    const io::DeviceProfile& profile = report.profiles[i];
    volumes.push_back({{"folder", volume.folder},
                       {"filesystem", volume.file_system},
                       {"device", volume.device},
                       {"model", volume.model},
                       {"calibration",
                        {{"request_bytes", profile.request_bytes},
                         {"read_depth", profile.read_depth},
                         {"write_depth", profile.write_depth},
                         {"mixed_write_depth", profile.mixed_write_depth},
                         {"read_bytes_per_second", profile.read_bytes_per_second},
                         {"write_bytes_per_second", profile.write_bytes_per_second},
                         {"seconds_behind_writes", io::SecondsBehindWrites(profile)}}}});
  }
  json["machine"] = {{"cpu", machine.cpu},
                     {"cpus", machine.num_cpus},
                     {"kernel", machine.kernel},
                     {"load", machine.load},
                     {"copy_bytes_per_second", machine.copy_bytes_per_second},
                     {"checksum_cpu_seconds_per_gib", machine.checksum_seconds_per_gib},
                     {"devices", volumes}};
  json["fio"] = report.fio_version.empty() ? Json() : Json(report.fio_version);
  json["commit"] = commit;
  return json;
}

std::string ToTable(const BenchReport& report, std::string_view commit) {
  const Machine& machine = report.machine;
  std::string text =
      absl::StrFormat("%s, %d CPUs, kernel %s, load %.1f, commit %s, %s, %s\n", machine.cpu,
                      machine.num_cpus, machine.kernel, machine.load, std::string(commit),
                      report.io_engine, report.fio_version.empty() ? "no fio" : report.fio_version);
  for (size_t i = 0; i < machine.volumes.size(); ++i) {
    const Volume& volume = machine.volumes[i];
    const io::DeviceProfile& profile = report.profiles[i];
    absl::StrAppend(&text, volume.folder, ": ", volume.file_system, " on ", volume.device,
                    volume.model.empty() ? "" : absl::StrCat(" (", volume.model, ")"),
                    "; requests of ", base::FormatBytes(profile.request_bytes), ", read depth ",
                    profile.read_depth, ", write depth ", profile.write_depth, ", beside reads ",
                    profile.mixed_write_depth,
                    absl::StrFormat("; a read waits %.0f ms at most for writes\n",
                                    1e3 * io::SecondsBehindWrites(profile)));
  }
  absl::StrAppend(&text,
                  absl::StrFormat("checksums alone take %.4f CPU s/GiB on an idle memory\n\n",
                                  machine.checksum_seconds_per_gib));
  absl::StrAppend(&text,
                  "op    pattern      block depth through         "
                  "   GB/s   GiB/s   p50 ms  p99 ms  p99.9  CPU s/GiB  sums  without");
  if (!report.fio_version.empty())
    absl::StrAppend(&text, "  fio GB/s depth  CPU  limit   GB/s  of it");
  absl::StrAppend(&text, "\n");
  std::vector<std::string> doubts;
  for (const Row& row : report.rows) {
    absl::StrAppend(&text, RowLine(row), "\n");
    for (const std::string& doubt : Doubts(row, machine.copy_bytes_per_second, machine.num_cpus)) {
      doubts.push_back(absl::StrCat("not to be believed: ", Describe(row.spec), ": ", doubt));
    }
  }
  const bool has_hashing = std::any_of(report.rows.begin(), report.rows.end(), [](const Row& row) {
    return !row.fio_beside_hashing.empty();
  });
  if (has_hashing) {
    absl::StrAppend(
        &text,
        "hashing: fio's GB/s while as many bytes of its memory are hashed as it moves by "
        "itself, and the row's share of that\n");
  }
  for (const std::string& doubt : doubts) absl::StrAppend(&text, doubt, "\n");
  return text;
}

}  // namespace spillway::bench_io
