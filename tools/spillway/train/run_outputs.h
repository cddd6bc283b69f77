// SPDX-License-Identifier: Apache-2.0
//
// The files that a training run writes for its user beside the store and the export: the step log,
// the trace and the metrics. They are opened before the run. An error in writing them does not end
// the run: it is reported once, and the run goes on without that file.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_OUTPUTS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_OUTPUTS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "tools/trainer/metrics/metrics_file.h"
#include "tools/trainer/metrics/output_file.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::command {

// Paths as the user gave them; empty: the file is not written.
struct RunOutputFlags {
  std::string log_json;
  std::string trace;
  std::string metrics;
  bool force = false;  // replace files that hold something else
};

// Thread-compatible.
class RunOutputs {
 public:
  // Opens the files without changing their contents, because the store may still turn out to be in
  // use. Returns the errors of OpenOutput. UsageError if the metrics file is no regular file. A
  // second interrupt removes those that were created here and are still empty.
  static absl::StatusOr<RunOutputs> Open(const RunOutputFlags& flags);

  // Whether the log has steps of an earlier run. REQUIRES: Begin was not called.
  absl::StatusOr<bool> LogHasSteps() const;
  // Begins the log of a run that starts after `step` steps. If `continues`, lines of later steps
  // are cut off the existing log; if not, the log is emptied. Prints a note if the log that is left
  // ends before `step`.
  void Begin(int64_t step, bool continues);
  void Take(const trainer::StepRecord& record, int64_t total_steps);
  // Takes the engine's totals once the run has ended.
  void TakeTotals(const EngineStats& stats);
  bool wants_timeline() const { return trace_.has_value(); }
  void End(const Timeline& timeline);

  // The paths of the files that are not complete.
  const std::vector<std::string>& lost() const { return lost_; }

 private:
  RunOutputs() = default;
  void CheckMetrics(const absl::Status& written);
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
