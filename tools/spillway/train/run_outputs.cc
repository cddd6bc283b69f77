// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/run_outputs.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/named_output.h"
#include "tools/trainer/metrics/trace_file.h"

namespace spillway::command {
namespace {

// Removes those of the files that are empty.
void RemoveEmpty(const std::vector<std::string>& files) {
  std::error_code error;
  for (const std::string& file : files) {
    if (std::filesystem::file_size(file, error) == 0 && !error)
      std::filesystem::remove(file, error);
  }
}

// Most steps whose records the trace holds: far more steps than the timeline's events cover.
constexpr size_t kTraceSteps = 50'000;

}  // namespace

absl::StatusOr<RunOutputs> RunOutputs::Open(const RunOutputFlags& flags) {
  RunOutputs outputs;
  std::vector<std::string> made;
  const auto open = [&](const char* flag, const std::string& path,
                        const trainer::OutputFile::Kind& kind,
                        std::optional<trainer::OutputFile>* file) -> absl::Status {
    if (path.empty()) return absl::OkStatus();
    SPILLWAY_ASSIGN_OR_RETURN(*file, OpenOutput(flag, path, kind, flags.force));
    if ((*file)->is_unused()) made.push_back(path);
    return absl::OkStatus();
  };
  std::optional<trainer::OutputFile> metrics;
  SPILLWAY_RETURN_IF_ERROR(
      open("--log-json", flags.log_json, trainer::StepLog::kKind, &outputs.log_file_));
  SPILLWAY_RETURN_IF_ERROR(open("--trace", flags.trace, trainer::kTraceKind, &outputs.trace_));
  SPILLWAY_RETURN_IF_ERROR(
      open("--metrics-file", flags.metrics, trainer::MetricsFile::kKind, &metrics));
  outputs.log_path_ = flags.log_json;
  if (metrics && !metrics->is_regular()) {
    return UsageError(absl::StrFormat(
        "--metrics-file %s is no regular file, and each step replaces it; name another",
        flags.metrics));
  }
  if (metrics) outputs.metrics_.emplace(*std::move(metrics));
  if (!made.empty()) TidyOnSecondInterrupt([made] { RemoveEmpty(made); });
  return outputs;
}

absl::StatusOr<bool> RunOutputs::LogHasSteps() const {
  if (!log_file_) return false;
  return trainer::StepLog::EndsWithAStep(*log_file_);
}

void RunOutputs::Begin(int64_t step, bool continues) {
  if (!log_file_) return;
  trainer::OutputFile file = *std::exchange(log_file_, std::nullopt);
  absl::StatusOr<trainer::StepLog> log = continues
                                             ? trainer::StepLog::Continue(std::move(file), step)
                                             : trainer::StepLog::Begin(std::move(file));
  if (!log.ok()) return Lose("--log-json", log_path_, log.status());
  log_.emplace(*std::move(log));
  const std::optional<int64_t> last = log_->continued_after();
  if (!last || *last >= step) return;
  absl::FPrintF(
      stderr,
      "note: --log-json %s ends at step %d and the run goes on after %d; the steps between "
      "are missing\n",
      log_path_, *last, step);
}

void RunOutputs::Take(const trainer::StepRecord& record, int64_t total_steps) {
  if (metrics_) CheckMetrics(metrics_->Write(record, total_steps));
  if (trace_) steps_.push_back(record);
  if (steps_.size() > kTraceSteps) steps_.pop_front();
  if (!log_) return;
  const absl::Status written = log_->Write(record);
  if (written.ok()) return;
  log_.reset();
  Lose("--log-json", log_path_, written);
}

void RunOutputs::TakeTotals(const EngineStats& stats) {
  if (metrics_) CheckMetrics(metrics_->WriteTotals(stats.nvme, stats.pinned));
}

void RunOutputs::CheckMetrics(const absl::Status& written) {
  if (written.ok()) return;
  Lose("--metrics-file", metrics_->path(), written);
  metrics_.reset();
}

void RunOutputs::End(const Timeline& timeline) {
  if (!trace_) return;
  const std::string path = trace_->path();
  const absl::Status written =
      trainer::WriteTrace(*std::exchange(trace_, std::nullopt), timeline, steps_);
  if (!written.ok()) Lose("--trace", path, written);
}

void RunOutputs::Lose(const char* flag, const std::string& path, const absl::Status& why) {
  lost_.push_back(path);
  absl::FPrintF(stderr, "warning: %s: %s; nothing else is lost\n", flag,
                std::string(why.message()));
}

}  // namespace spillway::command
