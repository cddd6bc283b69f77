// SPDX-License-Identifier: Apache-2.0
//
// A step's figures, as one line for people and one JSON line for programs.

#ifndef SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_
#define SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stats.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::trainer {

// An evaluation on the validation windows after a step.
struct Evaluation {
  double loss = 0;      // mean cross-entropy
  int64_t windows = 0;  // over how many windows
  double seconds = 0;   // wall time
};

// What one step did. Bytes and stall are differences of EngineStats over the step itself: its
// micro-batches and its update, without the evaluation or commit that may follow.
struct StepRecord {
  int64_t step = 0;  // steps done, this one included
  double loss = 0;   // mean over micro-batches, unscaled
  double grad_norm =
      0;  // of the whole gradient, unscaled, before clipping; not finite after an overflow
  double learning_rate = 0;
  double loss_scale = 1;  // that the step ran with
  bool skipped = false;   // the gradient overflowed and nothing was updated
  double tokens_per_second = 0;
  double seconds = 0;  // wall time since the end of what came before: a step, evaluation or commit
  int64_t begin_ns = 0;  // of std::chrono::steady_clock
  int64_t end_ns = 0;
  Traffic nvme;
  Traffic pinned;
  Traffic state;  // of `nvme`, the optimizer's state: master weights and moments
  double stall_seconds = 0;
  double flop_utilisation = 0;  // see flops.h; 0: the peak is not known
  PlanStats plan;               // as the engine had it after the step
  std::optional<Evaluation> evaluation;
  std::string evaluation_error;  // of the run's first evaluation that failed
};

// {"v":1,"step":…,"loss":…,"grad_norm":…,"lr":…,"loss_scale":…,"skipped":…,"tokens_per_s":…,"seconds":…,
// "read_bytes":{"nvme":…,"pinned":…},"written_bytes":{…},"state_read_bytes":…,
// "state_written_bytes":…,"stall_s":…}. The two of state are what of "nvme" is the optimizer's
// state: master weights and moments, neither weights nor gradients. A transfer counts in the step
// in which it ends, which may be the next; what an evaluation or a commit moves counts in none. A
// peak that is known adds "mfu"; a plan "plan_steps" (that followed it so far), "plan_moved_bytes"
// (of the last of these, whole), "planned_bytes", "bytes_bound", "nvme_bytes_bound",
// "time_bound_s", "compute_alone_s" and "transfers_alone_s" (see PlanStats), with the step's
// seconds over the bound, "time_ratio", and over the larger of the last two, "alone_ratio"; an
// evaluation "eval_loss", "eval_windows" and "eval_seconds". Every float reads back as the same
// bits; one that is not finite is null.
std::string ToJsonLine(const StepRecord& record);

// "step 12/400  loss 3.1416  norm 0.512  lr 1.0e-04  scale 65536  512 tok/s  nvme 1.20 GB/s read,
// …". `total_steps` is the run's.
std::string ToPeopleLine(const StepRecord& record, int64_t total_steps);

// The JSON lines of a run in a file. Each line reaches the file whole before Write returns, or not
// at all; it is not synced, so a loss of power, unlike a kill, may take lines of steps that a
// commit has. Thread-compatible.
class StepLog {
 public:
  static constexpr OutputFile::Kind kKind = {"a step log", "{\"v\":1,\"step\":", "",
                                             /*grows=*/true};

  // A log of its own: empties the file. Unavailable if it cannot be written.
  static absl::StatusOr<StepLog> Begin(OutputFile file);
  // The log of a run that continues after `step`. Lines at the file's end that tell of later steps,
  // which will be done again, and one that was torn, are cut off; whatever else is there stays, and
  // what follows begins on a line of its own.
  static absl::StatusOr<StepLog> Continue(OutputFile file, int64_t step);

  absl::Status Write(const StepRecord& record);

 private:
  explicit StepLog(OutputFile file) : file_(std::move(file)) {}
  absl::Status CutAfter(int64_t step);

  OutputFile file_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_METRICS_STEP_LOG_H_
