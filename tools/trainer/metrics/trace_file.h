// SPDX-License-Identifier: Apache-2.0
//
// A run's timeline as a file that ui.perfetto.dev opens: Chrome's trace-event JSON. Times are in
// microseconds from the timeline's begin.
//
//   "otherData"  {"format":"spillway trace","v":1,"dropped_events":…,"begin_us":…,
//                 "duration_us":…,"budget_bytes":{"device":…|null,…},
//                 "read_bytes":{"nvme":…,"pinned":…},"written_bytes":{…}}: all bytes moved, with
//                 the keys of the step log. If events were dropped, all that are left ended at
//                 "begin_us" or later, and what happened before that is not known; else it is 0
//   "cat"        a span's kind: "step" (args: step, loss, tokens_per_s), "evaluation", "commit",
//                "compute", "stall" (args: cause, tile, tier, in_the_way), "mover", and for
//                the links "nvme_read", "nvme_write", "device_read", "device_write" (args: bytes,
//                why, failed)
//   counters     "device", "pinned" and "nvme" with "bytes held", and with "bytes budget" at the
//                 begin and the end of the trace if the tier has a limit. "bytes held" begins with
//                 the level at "begin_us", unless that is 0
//
// Spans of one track follow one another or nest. Transfers that overlap on a link are on separate
// lanes.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_TRACE_FILE_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_TRACE_FILE_H_

#include <deque>

#include "absl/status/status.h"
#include "spillway/timeline.h"
#include "tools/trainer/metrics/output_file.h"
#include "tools/trainer/metrics/step_log.h"

namespace spillway::trainer {

inline constexpr OutputFile::Kind kTraceKind = {
    "a trace of spillway", R"({"displayTimeUnit":"ms","otherData":{"format":"spillway trace")", ""};

// Replaces the file's contents. `steps` are in order. A step is left out if the timeline may have
// dropped some of its events. Unavailable if the file cannot be written.
absl::Status WriteTrace(OutputFile file, const Timeline& timeline,
                        const std::deque<StepRecord>& steps);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_TRACE_FILE_H_
