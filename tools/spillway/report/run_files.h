// SPDX-License-Identifier: Apache-2.0
//
// Reads back what a training run wrote: its step log (--log-json) and its trace (--trace). What is
// in them is said in tools/trainer/metrics/step_log.h and trace_file.h.

#ifndef SPILLWAY_TOOLS_SPILLWAY_REPORT_RUN_FILES_H_
#define SPILLWAY_TOOLS_SPILLWAY_REPORT_RUN_FILES_H_

#include <array>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace spillway::run_report {

using Json = nlohmann::ordered_json;

// What a span of a trace is; the order of kSpanKinds.
enum class SpanKind : uint8_t {
  kStep,
  kEvaluation,
  kCommit,
  kCompute,
  kStall,
  kNvmeRead,
  kNvmeWrite,
  kDeviceRead,
  kDeviceWrite,
  kMover,
};
inline constexpr std::array<const char*, 10> kSpanKinds = {
    "step",      "evaluation", "commit",      "compute",      "stall",
    "nvme_read", "nvme_write", "device_read", "device_write", "mover"};
inline constexpr std::array<const char*, 3> kTierNames = {"device", "pinned", "nvme"};

// Times are microseconds from the trace's begin. Names are indices into RunTrace::names.
struct Span {
  SpanKind kind = SpanKind::kStep;
  int thread = 0;      // the track within the kind: caller, or lane of a link
  uint32_t name = 0;   // the tile; of a step, evaluation or commit, what it is
  uint32_t why = 0;    // the reason of a transfer, the cause of a stall
  uint32_t other = 0;  // of a stall: the tile in the way; "" if it is its own
  int64_t step = 0;    // of a step or evaluation
  double begin_us = 0;
  double end_us = 0;
  uint64_t bytes = 0;  // of a transfer that succeeded
};

struct Level {
  double at_us = 0;
  uint64_t bytes = 0;
};

struct RunTrace {
  double duration_us = 0;
  uint64_t dropped_events = 0;
  std::vector<std::string> names;                         // the first is ""
  std::vector<Span> spans;                                // in the file's order
  std::vector<Json> steps;                                // a step span's args
  std::array<std::vector<Level>, 3> held;                 // by tier, in order
  std::array<std::optional<uint64_t>, 3> budget_bytes{};  // none: unlimited
};

// What there is of a run.
struct RunFiles {
  std::vector<Json> log;  // a line each; empty without a log
  std::optional<RunTrace> trace;
  std::vector<std::string> notes;  // what was left out, for people
};

// Each path is a step log or a trace, told apart by content; at most one of each. An error names
// the file, the place in it, and what to do. NotFound, or InvalidArgument for content.
absl::StatusOr<RunFiles> ReadRunFiles(const std::vector<std::string>& paths);
// One of them, from a stream that can seek.
absl::Status ReadRunFile(std::istream& in, const std::string& path, RunFiles* files);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_RUN_FILES_H_
