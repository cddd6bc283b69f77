// SPDX-License-Identifier: Apache-2.0
//
// The training loop: a step's micro-batches, unscale and clip, update or skip, log, evaluate,
// commit. It decides their order and what a commit holds. It leaves the computation to the model
// and the optimizer, and the transfers to the engine.

#ifndef SPILLWAY_TOOLS_TRAINER_TRAINER_H_
#define SPILLWAY_TOOLS_TRAINER_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/loss_scaler.h"
#include "tools/trainer/metrics/step_log.h"
#include "tools/trainer/model.h"
#include "tools/trainer/schedule.h"
#include "tools/trainer/token_data.h"
#include "tools/trainer/train_state.h"
#include "tools/trainer/window_order.h"

namespace spillway::trainer {

// How the learning rate is scaled for a batch of another size than it was meant for: not at all, in
// proportion (Goyal et al., arXiv:1706.02677), or by the square root (Krizhevsky, arXiv:1404.5997).
enum class RateScaling : uint8_t { kUnscaled, kLinear, kSqrt };

struct TrainerOptions {
  ModelOptions model;
  Schedule schedule;           // the run ends at its total_steps
  double weight_decay = 0.01;  // for parameters that decay; `model.rule` has the other constants
  double clip_norm = 1.0;      // the largest norm of the whole gradient; 0: no clipping
  RateScaling rate_scaling = RateScaling::kUnscaled;
  int64_t rate_batch = 0;         // windows per step that the schedule's rate is meant for
  LossScalerOptions loss_scaler;  // enabled only under kFp16Amp
  Order order = Order::kSequential;
  uint64_t seed = 0;
  int64_t stop_after = 0;      // end after this many steps of this run; 0: at total_steps
  int64_t evaluate_every = 0;  // steps; 0: never
  int64_t evaluate_windows = 8;
  int64_t commit_every = 0;  // steps; 0: only when the run ends
  bool durable = false;      // the engine has a store to commit to
};

// The factor of every learning rate: the step's windows over rate_batch, the square root of that,
// or 1 for kUnscaled.
double RateScale(const TrainerOptions& options);

enum class EndReason : uint8_t { kDone, kStoppedAfter, kInterrupted };

// Times of a step, in seconds. All but `seconds` are from PlanStats, and zero without a plan.
struct StepTime {
  double seconds = 0;
  double bound = 0;
  double computing = 0;
  double transfers = 0;
};

struct RunSummary {
  EndReason reason = EndReason::kDone;
  int64_t step = 0;  // steps done, earlier runs included
  int64_t steps_this_run = 0;
  int64_t skipped_this_run = 0;
  double last_loss = 0;                       // of the last step done; NaN before the first
  std::optional<Evaluation> last_evaluation;  // none if the last one failed
  double tokens_per_second = 0;  // over this run's steps, without evaluations and commits
  StepTime median_step;          // over this run's steps from the third on; zeros if there are none
  PlanStats plan;                // after the last step that followed a plan; zeros if none did
  absl::Status commit;           // of the commit after the last step
  int64_t commits = 0;           // made by this run
  double commit_seconds = 0;     // of all of them together
};

// Thread-compatible. The engine, the pool and the data must outlive it.
class Trainer {
 public:
  // Called after each step and its evaluation, before the commit that may follow. An error ends the
  // run.
  using Observer = std::function<absl::Status(const StepRecord&)>;

  // `state` is the state in the engine's last commit, whose tiles the run keeps. Without it a new
  // run begins, with weights from `source`. `valid_data` may be null if nothing is evaluated.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      Engine* engine, ThreadPool* pool, const hf::ModelConfig& config,
      const TrainerOptions& options, const TokenData* train_data, const TokenData* valid_data,
      const WeightSource& source, const std::optional<TrainState>& state);
  // Computes with `compute` instead of the host; the update runs on the pool all the same.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      Engine* engine, ThreadPool* pool, std::unique_ptr<Compute> compute,
      const hf::ModelConfig& config, const TrainerOptions& options, const TokenData* train_data,
      const TokenData* valid_data, const WeightSource& source,
      const std::optional<TrainState>& state);

  // Trains until the schedule's end, `stop_after`, or until `stop` is true at the end of a step. A
  // run that has done all its steps counts as done, not as interrupted. Then commits if there is
  // anything to commit. If `commit_now` is true at the end of a step, sets it to false and commits.
  // A failed evaluation does not end the run; the step's record says so, and for the first failure
  // why. Any other error ends the run, after a commit of the steps before it if that is
  // possible. The error's message then says which commit stands, or that there is none. After an
  // error in reading, nothing is committed unless all that the commit would hold can be read. If
  // only the last commit fails, the summary has its error.
  absl::StatusOr<RunSummary> Run(const Observer& observer, const std::atomic<bool>& stop,
                                 std::atomic<bool>* commit_now = nullptr);

  // Writes everything that a commit holds as the first commit of another engine. REQUIRES: `other`
  // has a store, and no tensors yet.
  absl::Status CommitTo(Engine* other);

  // Whether the state after the last step is committed.
  bool is_committed() const { return committed_step_ == state_.step; }

  const Model& model() const { return *model_; }

 private:
  Trainer(Engine* engine, const TrainerOptions& options, const TokenData* train_data,
          const TokenData* valid_data);

  absl::Status RunSteps(const Observer& observer, const std::atomic<bool>& stop,
                        std::atomic<bool>* commit_now, RunSummary* summary);
  absl::Status CreateOptimizer(ThreadPool* pool, Stream* stream);
  absl::StatusOr<StepRecord> RunStep();
  absl::Status ComputeStep(StepRecord* record);
  absl::Status CommitBefore(const absl::Status& error);
  std::vector<TensorId> CommittedTensors() const;
  absl::Status CheckReadable();
  absl::Status UpdateOrSkip(const GradientSummary& summary, StepRecord* record);
  absl::Status ReadStep();
  absl::Status Commit();

  Engine* const engine_;
  const TrainerOptions options_;
  const TokenData* const train_data_;
  const TokenData* const valid_data_;
  const WindowOrder order_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  bool has_told_of_device_ = false;
  std::vector<Update> updates_;       // of a step; values that change are set in each step
  std::vector<double> rate_factors_;  // by update
  LossScaler scaler_;
  TrainState state_;
  double peak_flops_ = 0;  // operations per second
  double step_flops_ = 0;
  int64_t step_begin_ns_ = 0;  // of the current step: when the work before it ended
  // The stats up to which step records have counted transfers. Empty after an evaluation or a
  // commit, whose transfers count in no step.
  std::optional<EngineStats> counted_;
  int64_t committed_step_ = -1;         // -1: never
  int64_t commits_ = 0;                 // of this run
  double commit_seconds_ = 0;           // of all of them together
  double recorded_commit_seconds_ = 0;  // the part that step records have counted
  bool is_updating_ = false;            // an update is under way: the tensors are between two steps
  bool may_be_unreadable_ = false;      // a read failed, and the tiles were not checked since
  std::vector<int32_t> inputs_;         // [accumulate × micro_batch × sequence]
  std::vector<int32_t> targets_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TRAINER_H_
