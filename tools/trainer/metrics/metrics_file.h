// SPDX-License-Identifier: Apache-2.0
//
// The newest step's figures in Prometheus's text format (prometheus.io/docs/instrumenting/
// exposition_formats), for its node exporter's textfile collector.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_

#include <cstdint>
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
  const std::string& path() const { return file_.path(); }

 private:
  OutputFile file_;
  Traffic nvme_;  // of the run's steps so far
  Traffic pinned_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_METRICS_FILE_H_
