// SPDX-License-Identifier: Apache-2.0
//
// The newest step's figures in Prometheus's text format (prometheus.io/docs/instrumenting/
// exposition_formats), for its node exporter's textfile collector.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "spillway/stats.h"
#include "tools/trainer/metrics/output_file.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::trainer {

// Thread-compatible.
class MetricsFile {
 public:
  static constexpr OutputFile::Kind kKind = {"a metrics file of spillway", "# HELP spillway_step ",
                                             ""};

  explicit MetricsFile(OutputFile file) : file_(std::move(file)) {}

  // Replaces the whole file, so that a reader sees the figures of one step or of the step before.
  // Unavailable if it cannot be written. The file is then unchanged, unless it can only be
  // overwritten in place (see OutputFile).
  absl::Status Write(const StepRecord& record, int64_t total_steps);
  // Writes the figures of the last step again, with the bytes of what followed it: the last commit.
  // Does nothing before the first step. The errors are those of Write.
  absl::Status WriteTotals(const Traffic& nvme, const Traffic& pinned);
  const std::string& path() const { return file_.path(); }

 private:
  OutputFile file_;
  std::optional<StepRecord> last_;
  int64_t total_steps_ = 0;
  std::optional<Evaluation> evaluation_;  // the newest one; none if it failed
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_
