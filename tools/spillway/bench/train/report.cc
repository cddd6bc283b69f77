// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/train/report.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"

namespace spillway::bench_train {
namespace {

using Json = nlohmann::ordered_json;

bool IsOfProducts(size_t operation) {
  return operation == static_cast<size_t>(Operation::kProducts) ||
         operation == static_cast<size_t>(Operation::kAttention);
}

double TokensPerSecond(const Row& row) {
  return static_cast<double>(row.tokens) / row.seconds.step;
}

double Utilisation(const BenchReport& report, const Row& row) {
  return row.step_flops / row.seconds.step / report.product_flops;
}

Json ShareOf(double rate, double best) { return best > 0 ? Json(rate / best) : Json(nullptr); }

Json ToJson(const BenchReport& report, const OperationTime& time, bool of_products) {
  Json json = {{"calls", time.calls}, {"seconds", time.seconds}};
  if (of_products) {
    const double rate = time.flops / time.seconds;
    json["flops_per_second"] = rate;
    json["share_of_product"] = ShareOf(rate, report.product_flops);
  } else {
    const double rate = time.bytes / time.seconds;
    json["bytes_per_second"] = rate;
    json["share_of_copy"] = ShareOf(rate, report.copy_rate);
  }
  return json;
}

Json ToJson(const BenchReport& report, const Row& row) {
  Json json = {{"model", row.model}, {"where", NameOf(row.where)}};
  if (!row.skipped.empty()) {
    json["skipped"] = row.skipped;
    return json;
  }
  json["parameters"] = row.num_parameters;
  json["tokens"] = row.tokens;
  json["tokens_per_second"] = TokensPerSecond(row);
  json["mfu"] = ShareOf(row.step_flops / row.seconds.step, report.product_flops);
  json["step_seconds"] = row.seconds.step;
  json["walk_seconds"] = row.seconds.walk;
  json["update_seconds"] = row.seconds.update;
  json["computing_seconds"] = row.seconds.computing;
  json["transfer_seconds"] = row.seconds.transfers;
  json["waiting_seconds"] = row.seconds.waiting;
  json["lease_seconds"] = row.lease_seconds;
  json["nvme_bytes"] = row.nvme_bytes;
  json["copied_bytes"] = row.copied_bytes;
  json["device_bytes"] = row.device_bytes;
  json["pinned_bytes"] = row.pinned_bytes == kUnlimited ? Json(nullptr) : Json(row.pinned_bytes);
  json["workspace_bytes"] = row.workspace_bytes;
  json["operations"] = Json::object();
  for (size_t i = 0; i < kNumOperations; ++i) {
    if (row.operations[i].calls == 0) continue;
    json["operations"][std::string(NameOf(static_cast<Operation>(i)))] =
        ToJson(report, row.operations[i], IsOfProducts(i));
  }
  return json;
}

std::string OperationLine(const BenchReport& report, size_t i, const OperationTime& time) {
  const bool of_products = IsOfProducts(i);
  const double rate = (of_products ? time.flops : time.bytes) / time.seconds;
  const double best = of_products ? report.product_flops : report.copy_rate;
  std::string line = absl::StrFormat("    %-18s %7d calls %9.4f s  %8.1f %s",
                                     std::string(NameOf(static_cast<Operation>(i))), time.calls,
                                     time.seconds, rate / 1e9, of_products ? "GFLOP/s" : "GB/s");
  if (best > 0)
    absl::StrAppendFormat(&line, ", %.2f of a %s alone", rate / best,
                          of_products ? "product" : "copy");
  return line + "\n";
}

std::string Lines(const BenchReport& report, const Row& row) {
  if (!row.skipped.empty()) {
    return absl::StrFormat("%-8s %-7s skipped: %s\n", row.model, std::string(NameOf(row.where)),
                           row.skipped);
  }
  const StepSeconds& seconds = row.seconds;
  std::string text = absl::StrFormat(
      "%-8s %-7s %8.1f %8.3f  %8.3f %8.3f  %9.3f %9.3f %8.3f %8.3f", row.model,
      std::string(NameOf(row.where)), TokensPerSecond(row), seconds.step, seconds.walk,
      seconds.update, seconds.computing, seconds.transfers, seconds.waiting, row.lease_seconds);
  if (report.product_flops > 0)
    absl::StrAppendFormat(&text, "  %3.0f%%", 100 * Utilisation(report, row));
  text += "\n";
  for (size_t i = 0; i < kNumOperations; ++i) {
    if (row.operations[i].calls > 0) text += OperationLine(report, i, row.operations[i]);
  }
  return text;
}

}  // namespace

Json ToJson(const BenchReport& report, std::string_view commit) {
  Json json = {{"v", 1}};
  json["rows"] = Json::array();
  for (const Row& row : report.rows) json["rows"].push_back(ToJson(report, row));
  json["device"] = report.device;
  if (!report.library.empty()) json["library"] = report.library;
  const auto measured = [](double rate) { return rate > 0 ? Json(rate) : Json(nullptr); };
  json["product_flops_per_second"] = measured(report.product_flops);
  json["copy_bytes_per_second"] = measured(report.copy_rate);
  const bench_io::Machine& machine = report.machine;
  json["machine"] = {{"cpu", machine.cpu},
                     {"cpus", machine.num_cpus},
                     {"kernel", machine.kernel},
                     {"load", machine.load}};
  if (!machine.volumes.empty()) {
    json["machine"]["folder"] = machine.volumes.front().folder;
    json["machine"]["filesystem"] = machine.volumes.front().file_system;
    json["machine"]["drive"] = machine.volumes.front().device;
  }
  json["commit"] = commit;
  return json;
}

std::string ToTable(const BenchReport& report, std::string_view commit) {
  const bench_io::Machine& machine = report.machine;
  std::string text =
      absl::StrFormat("%s, %d CPUs, kernel %s, load %.1f, commit %s\ndevice: %s", machine.cpu,
                      machine.num_cpus, machine.kernel, machine.load, std::string(commit),
                      report.device.empty() ? "not opened" : report.device);
  if (!report.library.empty()) absl::StrAppend(&text, ", ", report.library);
  if (report.product_flops > 0) {
    absl::StrAppendFormat(&text, "; a product alone %.1f GFLOP/s, a copy alone %.1f GB/s",
                          report.product_flops / 1e9, report.copy_rate / 1e9);
  }
  absl::StrAppend(&text,
                  "\n\nmodel    where   tokens/s   step s      walk   update  computing transfers  "
                  "waiting   leases   mfu\n");
  for (const Row& row : report.rows) absl::StrAppend(&text, Lines(report, row));
  return text;
}

}  // namespace spillway::bench_train
