// SPDX-License-Identifier: Apache-2.0
//
// The figures of a step, as one line for people and one JSON line for programs, and the file of the
// JSON lines.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stats.h"
#include "tools/trainer/compute/computed_by.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::trainer {

// An evaluation on the validation windows after a step.
struct Evaluation {
  double loss = 0;      // mean cross-entropy
  int64_t windows = 0;  // number of windows evaluated
  double seconds = 0;   // wall time
};

// The figures of one step. Bytes and stall are differences of EngineStats over the step itself: its
// micro-batches and its update, without the evaluation or commit that may follow.
struct StepRecord {
  int64_t step = 0;  // steps done, this one included
  double loss = 0;   // mean over micro-batches, unscaled
  double grad_norm =
      0;  // of the whole gradient, unscaled, before clipping; not finite after an overflow
  double learning_rate = 0;
  double loss_scale = 1;  // that the step used
  bool skipped = false;   // the gradient overflowed and nothing was updated
  double tokens_per_second = 0;
  double seconds = 0;  // wall time since the end of what came before: a step, evaluation or commit
  int64_t begin_ns = 0;  // time of std::chrono::steady_clock
  int64_t end_ns = 0;
  Traffic nvme;
  Traffic pinned;
  Traffic state;  // the part of `nvme` that is optimizer state: master weights and moments
  // All that the engine moved since it was made: also when it loaded the weights, evaluated and
  // committed.
  Traffic all_nvme;
  Traffic all_pinned;
  double stall_seconds = 0;
  double commit_seconds = 0;    // of the commits between the step before and this one; 0: none
  double flop_utilisation = 0;  // see flops.h; 0: the peak is unknown
  PlanStats plan;               // the engine's PlanStats after the step
  int64_t device_waits = 0;     // of the thread that trains, for the GPU; 0 on the host
  std::optional<ComputedBy> computed_by;  // of the run's first step on a GPU
  std::optional<Evaluation> evaluation;
  bool evaluation_failed = false;
  std::string evaluation_error;  // set for the run's first failed evaluation only
};

// {"v":1,"step":…,"loss":…,"grad_norm":…,"lr":…,"loss_scale":…,"skipped":…,"tokens_per_s":…,
// "seconds":…,"read_bytes":{"nvme":…,"pinned":…},"written_bytes":{…},"state_read_bytes":…,
// "state_written_bytes":…,"stall_s":…}. The two state counts are the part of "nvme" that is
// optimizer state: master weights and moments, neither weights nor gradients. A transfer counts in
// the step in which it ends, which may be the next one. Transfers of an evaluation or a commit
// count in no step. More fields follow where they apply:
//   the peak is known   "mfu"
//   a plan was made     "plan_steps" (steps that followed a plan), "plan_moved_bytes" (over all
//                       edges; absent while it is not known), "planned_bytes", "bytes_bound",
//                       "nvme_bytes_bound" (see PlanStats; zeros if the step followed no plan)
//   with a time bound   "time_bound_s", "compute_alone_s", "transfers_alone_s" (see PlanStats),
//                       "time_ratio" (the step's seconds over the bound), "alone_ratio" (the same
//                       over the larger of compute_alone_s and transfers_alone_s)
//   on a GPU            "device_waits" (how often the run waited for it: once a step); and in the
//                       run's first record "computed_by" ({"gpu":…,"library":…,"algorithms":[…]})
//   after a commit      "commit_s" (seconds of the commits between the step before and this one;
//                       the commit that ends a run has no line after it)
//   after evaluation    "eval_loss", "eval_windows", "eval_seconds"
// Every float reads back as the same bits. A float that is not finite is null.
std::string ToJsonLine(const StepRecord& record);

// "step 12/400  loss 3.1416  norm 0.5120  lr 0.0001  scale 65536  512 tokens/s  nvme 1.20 GB/s
// read, …". `total_steps` is the number of steps of the run.
std::string ToPeopleLine(const StepRecord& record, int64_t total_steps);

// The JSON lines of a run in a file. Each line reaches the file whole before Write returns, or not
// at all. Lines are not synced, so a loss of power, unlike a kill, may lose lines of steps that are
// committed. Thread-compatible.
class StepLog {
 public:
  static constexpr OutputFile::Kind kKind = {"a step log", "{\"v\":1,\"step\":", "",
                                             /*grows=*/true};

  // Empties the file and starts a new log. Unavailable if it cannot be written.
  static absl::StatusOr<StepLog> Begin(OutputFile file);
  // Continues the log of a run after `step`. Cuts off lines at the file's end that record later
  // steps, which will be done again, and a torn line. Everything else stays, and new lines begin on
  // a line of their own.
  static absl::StatusOr<StepLog> Continue(OutputFile file, int64_t step);
  // Whether Continue(file, 0) would cut lines off. Unavailable if the file cannot be read.
  static absl::StatusOr<bool> EndsWithAStep(const OutputFile& file);
  // The step of the last line that Continue kept. None if no line is left or it is no record.
  std::optional<int64_t> continued_after() const { return continued_after_; }

  absl::Status Write(const StepRecord& record);

 private:
  explicit StepLog(OutputFile file) : file_(std::move(file)) {}
  absl::Status CutAfter(int64_t step);

  OutputFile file_;
  std::optional<int64_t> continued_after_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_
