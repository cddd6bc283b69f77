// SPDX-License-Identifier: Apache-2.0
//
// The files that a training run writes for its user beside store and export: the step log, the
// trace and the metrics. They are opened before the run, and none of them can end it: one that
// cannot be written any more is told once, and the run goes on without it.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_OUTPUTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_OUTPUTS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/timeline.h"
#include "tools/trainer/metrics/metrics_file.h"
#include "tools/trainer/metrics/output_file.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::command {

// As the user named them; empty: not wanted.
struct RunOutputFlags {
  std::string log_json;
  std::string trace;
  std::string metrics;
  bool force = false;  // replace files that are something else
};

// Thread-compatible.
class RunOutputs {
 public:
  // Opens the files and changes none: the store may still turn out to be in use. The errors are
  // OpenOutput's.
  static absl::StatusOr<RunOutputs> Open(const RunOutputFlags& flags);

  // The run begins after `step` steps: of a log that is continued, later lines are cut off.
  void Begin(int64_t step, bool continues);
  void Take(const trainer::StepRecord& record, int64_t total_steps);
  bool wants_timeline() const { return trace_.has_value(); }
  void End(const Timeline& timeline);

  // The files that are not complete.
  const std::vector<std::string>& lost() const { return lost_; }

 private:
  RunOutputs() = default;
  void Lose(const char* flag, const std::string& path, const absl::Status& why);

  std::optional<trainer::OutputFile> log_file_;  // until Begin
  std::string log_path_;
  std::optional<trainer::StepLog> log_;
  std::optional<trainer::OutputFile> trace_;
  std::optional<trainer::MetricsFile> metrics_;
  std::deque<trainer::StepRecord> steps_;  // for the trace
  std::vector<std::string> lost_;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_OUTPUTS_H_
