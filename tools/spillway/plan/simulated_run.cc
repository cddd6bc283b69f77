// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/simulated_run.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/plan/outlook.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::command {
namespace {

using plan::Transfer;

constexpr double kNotComputed = std::numeric_limits<double>::quiet_NaN();

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

Traffic NvmeOf(const plan::LinkBytes& bytes) {
  return {bytes[Transfer::kRead], bytes[Transfer::kWrite]};
}
Traffic PinnedOf(const plan::LinkBytes& bytes) {
  return {bytes[Transfer::kCopyIn], bytes[Transfer::kCopyOut]};
}

void Add(const Traffic& more, Traffic* sum) {
  sum->read_bytes += more.read_bytes;
  sum->written_bytes += more.written_bytes;
}

// What a step's plan foretold.
PlanStats PlanOf(const StepCost& cost, const simulation::StepResult& step, uint64_t number) {
  PlanStats plan;
  if (!cost.not_planned.empty()) {
    plan.not_planned = cost.not_planned;
    return plan;
  }
  plan.plans = 1;
  plan.steps = number;
  plan.nvme = NvmeOf(step.bytes);
  plan.pinned = PinnedOf(step.bytes);
  plan.planned_bytes = cost.planned_bytes.total();
  plan.bytes_bound = cost.bytes_bound.total();
  plan.nvme_bytes_bound = cost.bytes_bound.nvme;
  plan.time_bound_seconds = cost.bound_seconds;
  plan.compute_seconds = step.compute_seconds;
  plan.transfer_seconds = cost.transfer_bound_seconds;
  return plan;
}

trainer::StepRecord RecordOf(const Question& question, const StepCost& cost,
                             const simulation::StepResult& step) {
  StepCost of_step = cost;
  of_step.seconds = step.seconds;
  trainer::StepRecord record;
  record.loss = record.grad_norm = record.learning_rate = kNotComputed;
  record.seconds = step.seconds;
  record.tokens_per_second = static_cast<double>(question.tokens) / step.seconds;
  record.begin_ns = Nanoseconds(step.begin_seconds);
  record.end_ns = Nanoseconds(step.begin_seconds + step.seconds);
  record.nvme = NvmeOf(step.bytes);
  record.pinned = PinnedOf(step.bytes);
  record.state = step.state;
  record.stall_seconds = step.stall_seconds;
  record.flop_utilisation = ModelFlopUtilisation(question, of_step);
  return record;
}

}  // namespace

absl::StatusOr<RunOutputs> OpenSimulatedRun(const RunOutputFlags& flags) {
  for (const auto& [flag, path] :
       {std::pair{"--log-json", &flags.log_json}, {"--trace", &flags.trace}}) {
    std::error_code error;
    const bool has_contents = !path->empty() && std::filesystem::is_regular_file(*path, error) &&
                              std::filesystem::file_size(*path, error) > 0 && !error;
    if (!has_contents || flags.force) continue;
    return UsageError(absl::StrFormat(
        "%s %s has contents, which may be those of a real run; name another file, or give --force",
        flag, *path));
  }
  return RunOutputs::Open(flags);
}

void WriteSimulatedRun(const Question& question, const StepCost& cost,
                       const std::vector<simulation::StepResult>& steps, Timeline timeline,
                       RunOutputs* outputs) {
  outputs->Begin(0, /*continues=*/false);
  Traffic nvme, pinned;
  int64_t number = 0;
  for (const simulation::StepResult& step : steps) {
    trainer::StepRecord record = RecordOf(question, cost, step);
    record.step = ++number;
    record.plan = PlanOf(cost, step, static_cast<uint64_t>(number));
    Add(record.nvme, &nvme);
    Add(record.pinned, &pinned);
    record.all_nvme = nvme;
    record.all_pinned = pinned;
    outputs->Take(record, static_cast<int64_t>(steps.size()));
  }
  if (outputs->wants_timeline()) outputs->End(timeline);
}

}  // namespace spillway::command
