// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/report.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "tools/spillway/bench/io/rows.h"

namespace spillway::bench_update {
namespace {

using Json = nlohmann::ordered_json;
using bench_io::Summary;
using Value = double Sample::*;

constexpr double kMillion = 1e6;
constexpr char kCached[] = "page cache: the device was not measured";

// Returns the value in each round that has it. Rounds after fio failed have none of fio.
std::vector<double> ValuesOf(const Row& row, Value value) {
  std::vector<double> values;
  for (const Sample& sample : row.samples) {
    if (sample.*value > 0) values.push_back(sample.*value);
  }
  return values;
}

Summary Of(const Row& row, Value value) { return bench_io::Summarize(ValuesOf(row, value)); }

// Returns the row's limit. For kDram it is memory. For kNvme it is fio or kernel and hash,
// whichever has the lower median, and the latter if there is no fio.
Value LimitOf(const Row& row) {
  if (row.where == Where::kDram) return &Sample::memory;
  const double fio = Of(row, &Sample::fio).median;
  const bool fio_is_less = fio > 0 && fio < Of(row, &Sample::kernel).median;
  return fio_is_less ? &Sample::fio : &Sample::kernel;
}

std::string NameOfLimit(Value limit) {
  if (limit == &Sample::memory) return "memory";
  return limit == &Sample::fio ? "fio" : "kernel+hash";
}

Summary Share(const Row& row) {
  const Value limit = LimitOf(row);
  std::vector<double> shares;
  for (const Sample& sample : row.samples) {
    if (sample.*limit > 0) shares.push_back(sample.update / (sample.*limit));
  }
  return bench_io::Summarize(shares);
}

Json ToJson(const Row& row) {
  const Value limit = LimitOf(row);
  const Summary update = Of(row, &Sample::update), share = Share(row);
  Json json = {{"optimizer", Name(row.rule.kind)},
               {"momentum", row.rule.momentum},
               {"state_format", Name(row.format)},
               {"where", NameOf(row.where)},
               {"parameters_per_second", update.median},
               {"limit_parameters_per_second", Of(row, limit).median},
               {"limit", NameOfLimit(limit)},
               {"read_bytes_per_parameter", row.bytes.read},
               {"written_bytes_per_parameter", row.bytes.written},
               {"share", share.median},
               {"lowest_share", share.low},
               {"highest_share", share.high},
               {"rounds", row.samples.size()},
               {"lowest_parameters_per_second", update.low},
               {"highest_parameters_per_second", update.high}};
  if (row.where == Where::kNvme) {
    const double fio = Of(row, &Sample::fio).median;
    json["fio_parameters_per_second"] = fio > 0 ? Json(fio) : Json(nullptr);
    json["fio_rounds"] = ValuesOf(row, &Sample::fio).size();
    json["kernel_hash_parameters_per_second"] = Of(row, &Sample::kernel).median;
    const auto counted = [](double bytes) { return bytes > 0 ? Json(bytes) : Json(nullptr); };
    json["kernel_read_bytes_per_parameter"] = counted(row.kernel_bytes.read);
    json["kernel_written_bytes_per_parameter"] = counted(row.kernel_bytes.written);
  }
  return json;
}

std::string Words(const Row& row) {
  return absl::StrCat(std::string(Name(row.rule.kind)),
                      row.rule.momentum > 0 ? absl::StrCat(" ", row.rule.momentum) : "");
}

std::string Line(const Row& row) {
  const Value limit = LimitOf(row);
  const Summary share = Share(row);
  std::string line = absl::StrFormat(
      "%-5s %-12s %-8s %8.1f  %8.1f  %-11s  %.2f  (%.2f-%.2f)  %5.2f %5.2f",
      std::string(NameOf(row.where)), Words(row), std::string(Name(row.format)),
      Of(row, &Sample::update).median / kMillion, Of(row, limit).median / kMillion,
      NameOfLimit(limit), share.median, share.low, share.high, row.bytes.read, row.bytes.written);
  if (row.where == Where::kNvme) {
    const Value other = limit == &Sample::fio ? &Sample::kernel : &Sample::fio;
    const double rate = Of(row, other).median / kMillion;
    if (rate > 0) absl::StrAppendFormat(&line, "  %s %.1f", NameOfLimit(other), rate);
  }
  return absl::StrCat(line, "\n");
}

}  // namespace

Json ToJson(const BenchReport& report, std::string_view commit) {
  Json json = {{"v", 1}};
  json["rows"] = Json::array();
  for (const Row& row : report.rows) json["rows"].push_back(ToJson(row));
  json["parameters"] = report.num_parameters;
  json["doubts"] = report.cached ? Json::array({kCached}) : Json::array();
  const bench_io::Machine& machine = report.machine;
  json["machine"] = {{"cpu", machine.cpu},
                     {"cpus", machine.num_cpus},
                     {"threads", report.num_threads},
                     {"kernel", machine.kernel},
                     {"load", machine.load}};
  if (!machine.volumes.empty()) {
    const bench_io::Volume& volume = machine.volumes.front();
    json["memory_bytes"] = report.memory_bytes;
    json["gradients"] = report.gradients == Where::kNvme ? "nvme" : "memory";
    json["machine"]["folder"] = volume.folder;
    json["machine"]["filesystem"] = volume.file_system;
    json["machine"]["drive"] = volume.device;
    json["machine"]["model"] = volume.model;
    json["machine"]["io_engine"] = report.io_engine;
    json["fio"] = report.fio.empty() ? Json(nullptr) : Json(report.fio);
  }
  json["commit"] = commit;
  return json;
}

std::string ToTable(const BenchReport& report, std::string_view commit) {
  const bench_io::Machine& machine = report.machine;
  std::string text =
      absl::StrFormat("%s, %d CPUs, %d threads, kernel %s, load %.1f, commit %s\n%d parameters",
                      machine.cpu, machine.num_cpus, report.num_threads, machine.kernel,
                      machine.load, std::string(commit), report.num_parameters);
  if (!machine.volumes.empty()) {
    const bench_io::Volume& volume = machine.volumes.front();
    absl::StrAppendFormat(&text, "; %s: %s on %s, %s, %s; pinned memory %s", volume.folder,
                          volume.file_system, volume.device, report.io_engine,
                          report.fio.empty() ? "no fio" : report.fio,
                          base::FormatBytes(report.memory_bytes));
    if (report.gradients == Where::kNvme) absl::StrAppend(&text, ", gradients on NVMe");
  }
  absl::StrAppend(&text,
                  "\n\nwhere optimizer    format   Mparam/s     limit               share  "
                  "(rounds)     read written B/param\n");
  for (const Row& row : report.rows) absl::StrAppend(&text, Line(row));
  if (report.cached) absl::StrAppend(&text, "not to be believed: ", kCached, "\n");
  return text;
}

}  // namespace spillway::bench_update
