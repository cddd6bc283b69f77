// SPDX-License-Identifier: Apache-2.0
//
// Reads back what a training run wrote: its step log (--log-json) and its trace (--trace). Their
// formats are described in tools/trainer/metrics/step_log.h and trace_file.h.

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

// The kind of a span of a trace, in the order of kSpanKinds.
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
  int thread = 0;      // the track within the kind: a caller, or a lane of a link
  uint32_t name = 0;   // the tile; for a step, evaluation or commit, its title
  uint32_t why = 0;    // the reason of a transfer, or the cause of a stall
  uint32_t other = 0;  // for a stall: the tile in the way; "" if it is the same tile
  int64_t step = 0;    // for a step or evaluation: its number
  double begin_us = 0;
  double end_us = 0;
  uint64_t bytes = 0;  // for a transfer: its bytes if it succeeded
};

struct Level {
  double at_us = 0;
  uint64_t bytes = 0;
};

struct RunTrace {
  double begin_us = 0;  // later than 0 if older events were dropped: all before it is not known
  double duration_us = 0;
  uint64_t dropped_events = 0;
  std::vector<std::string> names;                         // the first is ""
  std::vector<Span> spans;                                // in the file's order
  std::vector<Json> steps;                                // args of the step spans, in order
  std::array<std::vector<Level>, 3> held;                 // levels of each tier, in order
  std::array<std::optional<uint64_t>, 3> budget_bytes{};  // none: unlimited
};

// The files of a run that were given.
struct RunFiles {
  std::vector<Json> log;  // an object per line; empty if there is no log
  std::optional<RunTrace> trace;
  std::vector<std::string> notes;  // messages about what was left out
};

// Reads the files. Each path is a step log or a trace, told apart by content, and there is at most
// one of each. NotFound if a file cannot be read, InvalidArgument if its content is wrong. The
// message names the file, the place in it, and what to do.
absl::StatusOr<RunFiles> ReadRunFiles(const std::vector<std::string>& paths);
// Reads one of them from a stream that can seek, and adds it to `files`.
absl::Status ReadRunFile(std::istream& in, const std::string& path, RunFiles* files);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_RUN_FILES_H_
