// SPDX-License-Identifier: Apache-2.0
//
// The training loop.

#include "tools/trainer/trainer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "src/base/status_macros.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/evaluation.h"
#include "tools/trainer/fixed_flags.h"
#include "tools/trainer/flops.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/updates.h"

namespace spillway::trainer {
namespace {

// torch.nn.utils.clip_grad_norm_ adds this to the norm before dividing.
constexpr double kClipEpsilon = 1e-6;

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

Traffic operator-(const Traffic& after, const Traffic& before) {
  return {after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes};
}

// The NVMe traffic of the optimizer's state alone.
Traffic StateTraffic(const EngineStats& stats) {
  const Traffic& master = stats.role_nvme[static_cast<size_t>(Role::kMasterWeight)];
  const Traffic& moments = stats.role_nvme[static_cast<size_t>(Role::kMoment)];
  return {master.read_bytes + moments.read_bytes, master.written_bytes + moments.written_bytes};
}

// The first step has no plan. The second has none that accounts for which tensors have bytes.
constexpr int64_t kUnplannedSteps = 2;

StepTime Median(std::vector<StepTime> steps) {
  if (steps.empty()) return {};
  const auto middle = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(),
                   [](const StepTime& a, const StepTime& b) { return a.seconds < b.seconds; });
  return *middle;
}

// Whether the error may mean that bytes of the store cannot be read.
bool IsReadError(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsUnavailable(status);
}

// Returns the error with `words` appended to its message.
absl::Status Add(const absl::Status& error, std::string_view words) {
  absl::Status longer(error.code(),
                      absl::StrFormat("%s%s", std::string(error.message()), std::string(words)));
  error.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { longer.SetPayload(type, payload); });
  return longer;
}

// Runs `work`, and turns the exception that a library throws when memory runs out into a Status.
absl::Status Guarded(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s; use a smaller --seq, --batch or --accumulate, or smaller budgets",
                        std::strerror(ENOMEM)));
  }
}

}  // namespace

double RateScale(const TrainerOptions& options) {
  if (options.rate_scaling == RateScaling::kUnscaled) return 1;
  const double ratio = static_cast<double>(options.model.accumulate * options.model.micro_batch) /
                       static_cast<double>(options.rate_batch);
  return options.rate_scaling == RateScaling::kLinear ? ratio : std::sqrt(ratio);
}

Trainer::Trainer(Engine* engine, const TrainerOptions& options, const TokenData* train_data,
                 const TokenData* valid_data)
    : engine_(engine),
      options_(options),
      train_data_(train_data),
      valid_data_(valid_data),
      order_(options.order, train_data->num_windows(), options.seed),
      scaler_(options.loss_scaler),
      inputs_(options.model.accumulate * options.model.micro_batch * options.model.sequence),
      targets_(inputs_.size()) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    Engine* engine, ThreadPool* pool, const hf::ModelConfig& config, const TrainerOptions& options,
    const TokenData* train_data, const TokenData* valid_data, const WeightSource& source,
    const std::optional<TrainState>& state) {
  SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Compute> compute, HostCompute::Create(pool));
  return Create(engine, pool, std::move(compute), config, options, train_data, valid_data, source,
                state);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    Engine* engine, ThreadPool* pool, std::unique_ptr<Compute> compute,
    const hf::ModelConfig& config, const TrainerOptions& options, const TokenData* train_data,
    const TokenData* valid_data, const WeightSource& source,
    const std::optional<TrainState>& state) {
  std::unique_ptr<Trainer> trainer(new Trainer(engine, options, train_data, valid_data));
  ModelOptions model_options = options.model;
  model_options.is_resumed = state.has_value();
  const Description model = Describe(config);
  model_options.tiles = state ? TilesOfStore(model, state->tiles) : TilesOf(model, options.model);
  trainer->peak_flops_ = compute->PeakFlops();
  Stream* const stream = compute->stream();
  SPILLWAY_ASSIGN_OR_RETURN(
      trainer->model_, Model::Create(engine, std::move(compute), config, model_options, source));
  SPILLWAY_RETURN_IF_ERROR(trainer->CreateOptimizer(pool, stream));
  trainer->step_flops_ = StepFlops(config, options.model);
  if (state) {
    trainer->state_ = *state;
    trainer->scaler_.Restore(state->loss_scale);
    trainer->committed_step_ = state->step;
  } else {
    trainer->state_.last_loss = std::numeric_limits<double>::quiet_NaN();
    trainer->state_.fixed = FixedFlags(options, config, *train_data, pool->num_threads());
    trainer->state_.config_json = config.json;
  }
  trainer->state_.total_steps = options.schedule.total_steps;
  trainer->state_.tiles = model_options.tiles;
  if (const auto by = trainer->model_->computed_by()) trainer->state_.computed_by = Summary(*by);
  return trainer;
}

// Creates the optimizer for the parameters that are trained.
absl::Status Trainer::CreateOptimizer(ThreadPool* pool, Stream* stream) {
  const ModelOptions& model = options_.model;
  SPILLWAY_ASSIGN_OR_RETURN(
      optimizer_, Optimizer::Create(engine_, pool, model.rule, model.state_format, stream));
  SPILLWAY_ASSIGN_OR_RETURN(
      ListedUpdates listed,
      AddTrained(optimizer_.get(), model, model_->parameters(), options_.weight_decay));
  updates_ = std::move(listed.updates);
  rate_factors_ = std::move(listed.rate_factors);
  return absl::OkStatus();
}

absl::StatusOr<RunSummary> Trainer::Run(const Observer& observer, const std::atomic<bool>& stop,
                                        std::atomic<bool>* commit_now) {
  RunSummary summary;
  absl::Status status = Guarded([&] { return RunSteps(observer, stop, commit_now, &summary); });
  const bool is_done = status.ok();
  if (is_done) status = Commit();
  const bool has_steps = committed_step_ >= 0 || summary.steps_this_run > 0;
  if (!status.ok() && has_steps) status = CommitBefore(status);
  if (!is_done) return status;
  summary.commit = status;
  summary.commits = commits_;
  summary.commit_seconds = commit_seconds_;
  summary.step = state_.step;
  summary.last_loss = state_.last_loss;
  return summary;
}

absl::Status Trainer::RunSteps(const Observer& observer, const std::atomic<bool>& stop,
                               std::atomic<bool>* commit_now, RunSummary* summary) {
  double seconds = 0;
  bool has_failed_evaluation = false;
  std::vector<StepTime> planned;
  step_begin_ns_ = NowNs();
  while (state_.step < options_.schedule.total_steps) {
    if (options_.stop_after > 0 && summary->steps_this_run == options_.stop_after) {
      summary->reason = EndReason::kStoppedAfter;
      break;
    }
    if (stop.load()) {
      summary->reason = EndReason::kInterrupted;
      break;
    }
    SPILLWAY_ASSIGN_OR_RETURN(StepRecord record, RunStep());
    ++summary->steps_this_run;
    if (record.skipped) ++summary->skipped_this_run;
    if (record.plan.planned_bytes > 0 && record.plan.moved_bytes() > 0) summary->plan = record.plan;
    seconds += record.seconds;
    summary->tokens_per_second = static_cast<double>(summary->steps_this_run) *
                                 static_cast<double>(inputs_.size()) / seconds;
    if (summary->steps_this_run > kUnplannedSteps) {
      planned.push_back({.seconds = record.seconds,
                         .bound = record.plan.time_bound_seconds,
                         .computing = record.plan.compute_seconds,
                         .transfers = record.plan.transfer_seconds});
    }

    if (options_.evaluate_every > 0 && state_.step % options_.evaluate_every == 0) {
      const absl::StatusOr<Evaluation> evaluation = Evaluate(
          model_.get(), *valid_data_, options_.model.sequence, options_.evaluate_windows, &stop);
      SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());  // an evaluation is a step of its own
      SPILLWAY_RETURN_IF_ERROR(engine_->WaitForPlan());
      counted_.reset();
      step_begin_ns_ = NowNs();
      if (IsReadError(evaluation.status())) may_be_unreadable_ = true;
      if (evaluation.ok()) {
        summary->last_evaluation = record.evaluation = *evaluation;
      } else if (!absl::IsCancelled(evaluation.status())) {
        summary->last_evaluation.reset();  // an earlier loss is not that of these weights
        record.evaluation_failed = true;
        if (!std::exchange(has_failed_evaluation, true))
          record.evaluation_error = std::string(evaluation.status().message());
      }
    }
    const EngineStats stats = engine_->Stats();
    record.all_nvme = stats.nvme;
    record.all_pinned = stats.pinned;
    SPILLWAY_RETURN_IF_ERROR(observer(record));
    const bool is_asked = commit_now != nullptr && commit_now->exchange(false);
    const bool is_due =
        is_asked || (options_.commit_every > 0 && state_.step % options_.commit_every == 0);
    const bool goes_on = state_.step < options_.schedule.total_steps &&
                         summary->steps_this_run != options_.stop_after && !stop.load();
    if (is_due && goes_on) SPILLWAY_RETURN_IF_ERROR(Commit());  // Run makes the last commit
  }
  summary->median_step = Median(std::move(planned));
  return absl::OkStatus();
}

// Commits the steps before an error, unless an update was under way. Returns the error, with a note
// on which commit stands.
absl::Status Trainer::CommitBefore(const absl::Status& error) {
  if (!options_.durable) return error;
  if (committed_step_ == state_.step) {
    // The damaged page may belong to the last commit itself.
    return absl::IsDataLoss(error) ? error : Add(error, "; the last commit stands");
  }
  if (is_updating_) {
    return Add(error,
               committed_step_ < 0
                   ? absl::StrFormat("; the update of step %d was under way and nothing had been "
                                     "committed, so the steps before it are lost. A run with "
                                     "--commit-every keeps earlier steps",
                                     state_.step + 1)
                   : absl::StrFormat("; the update of step %d was under way, so the last commit "
                                     "stands",
                                     state_.step + 1));
  }
  // The next step fails again from this state, so a good commit is worth more.
  if (absl::IsOutOfRange(error) && committed_step_ >= 0) {
    return Add(error, absl::StrFormat("; the commit of step %d stands. --resume has the same --lr "
                                      "and --clip, and fails again here. To continue with others, "
                                      "write that commit out (spillway snapshot export) and train "
                                      "from it",
                                      committed_step_));
  }
  if (IsReadError(error)) may_be_unreadable_ = true;
  if (!CheckReadable().ok()) {
    if (committed_step_ < 0) {
      return Add(error,
                 "; nothing is committed, because the state of the steps before cannot be read "
                 "whole. A run with --commit-every keeps earlier steps");
    }
    return Add(error, absl::StrFormat("; the steps since the commit of step %d are not committed, "
                                      "because their state cannot be read whole. That commit "
                                      "stands: spillway fsck checks it, and --resume continues "
                                      "from it",
                                      committed_step_));
  }
  if (const absl::Status commit = Commit(); !commit.ok()) {
    return Add(error, committed_step_ < 0 ? "; the steps before it could not be committed either"
                                          : "; the steps since the last commit could not be "
                                            "committed either, and it stands");
  }
  return Add(error, absl::StrFormat("; the %d steps before are committed, and --resume continues "
                                    "from there",
                                    state_.step));
}

absl::StatusOr<StepRecord> Trainer::RunStep() {
  const int64_t waits = model_->device_waits();
  // Counts from the last record on, because a transfer may end after its step's record was made.
  const EngineStats before = counted_ ? *counted_ : engine_->Stats();
  const uint64_t position = state_.data_position;
  const LossScalerState scale = scaler_.state();
  StepRecord record;
  const absl::Status status = Guarded([&] { return ComputeStep(&record); });
  if (!status.ok()) {  // undo the step; an update under way cannot be undone
    state_.data_position = position;
    scaler_.Restore(scale);
    return status;
  }
  ++state_.step;
  state_.last_loss = record.loss;
  SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
  SPILLWAY_RETURN_IF_ERROR(engine_->WaitForPlan());

  const EngineStats after = engine_->Stats();
  counted_ = after;
  record.step = state_.step;
  record.end_ns = NowNs();
  record.begin_ns = std::exchange(step_begin_ns_, record.end_ns);
  record.seconds = static_cast<double>(record.end_ns - record.begin_ns) / 1e9;
  record.tokens_per_second = static_cast<double>(inputs_.size()) / record.seconds;
  record.nvme = after.nvme - before.nvme;
  record.pinned = after.pinned - before.pinned;
  record.state = StateTraffic(after) - StateTraffic(before);
  record.plan = after.plan;
  record.device_waits = model_->device_waits() - waits;
  if (!std::exchange(has_told_of_device_, true)) record.computed_by = model_->computed_by();
  record.stall_seconds = after.stall_seconds - before.stall_seconds;
  record.commit_seconds =
      commit_seconds_ - std::exchange(recorded_commit_seconds_, commit_seconds_);
  if (peak_flops_ > 0) record.flop_utilisation = step_flops_ / record.seconds / peak_flops_;
  return record;
}

absl::Status Trainer::ComputeStep(StepRecord* record) {
  record->learning_rate = options_.schedule.At(state_.step) * RateScale(options_);
  record->loss_scale = scaler_.scale();
  SPILLWAY_RETURN_IF_ERROR(ReadStep());
  const double gradient_scale =
      static_cast<double>(scaler_.scale()) / static_cast<double>(options_.model.accumulate);
  SPILLWAY_ASSIGN_OR_RETURN(
      record->loss,
      model_->Train({.inputs = inputs_, .targets = targets_, .gradient_scale = gradient_scale}));
  return UpdateOrSkip(model_->gradients(), record);
}

// Unscales and clips with one factor and updates, or skips the update after an overflow.
absl::Status Trainer::UpdateOrSkip(const GradientSummary& summary, StepRecord* record) {
  const double scale = scaler_.scale();
  record->grad_norm = summary.finite ? std::sqrt(summary.sum_of_squares) / scale
                                     : std::numeric_limits<double>::infinity();
  if (!summary.finite && !scaler_.enabled()) {
    return absl::OutOfRangeError(
        absl::StrFormat("step %d: the gradient is not finite (loss %g) and nothing was updated: "
                        "lower --lr or --clip",
                        state_.step + 1, record->loss));
  }
  record->skipped = !summary.finite;
  scaler_.Update(record->skipped);
  if (record->skipped) {
    if (scaler_.scale() >= kSmallestLossScale) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrFormat(
        "step %d: the gradient overflows at every loss scale down to %g (loss %g). The "
        "model overflows fp16: train with --precision bf16 or --precision fp32",
        state_.step + 1, scale, record->loss));
  }
  double clip = 1.0;
  if (options_.clip_norm > 0)
    clip = std::min(1.0, options_.clip_norm / (record->grad_norm + kClipEpsilon));
  for (size_t i = 0; i < updates_.size(); ++i) {
    updates_[i].step = state_.applied_updates + 1;
    updates_[i].learning_rate = record->learning_rate * rate_factors_[i];
    updates_[i].gradient_scale = clip / scale;
  }
  is_updating_ = true;
  SPILLWAY_RETURN_IF_ERROR(optimizer_->Step(updates_));
  is_updating_ = false;
  ++state_.applied_updates;
  return absl::OkStatus();
}

absl::Status Trainer::ReadStep() {
  const std::span<int32_t> inputs(inputs_);
  const std::span<int32_t> targets(targets_);
  const auto sequence = static_cast<size_t>(options_.model.sequence);
  for (size_t offset = 0; offset < inputs.size(); offset += sequence) {
    const uint64_t window = order_.WindowAt(state_.data_position++);
    SPILLWAY_RETURN_IF_ERROR(train_data_->Read(window, inputs.subspan(offset, sequence),
                                               targets.subspan(offset, sequence)));
  }
  return absl::OkStatus();
}

std::vector<TensorId> Trainer::CommittedTensors() const {
  std::vector<TensorId> tensors;
  for (const Parameter& parameter : model_->parameters()) {
    tensors.insert(tensors.end(), parameter.tensors.state.begin(), parameter.tensors.state.end());
    tensors.push_back(parameter.tensors.weight);
  }
  return tensors;
}

absl::Status Trainer::CommitTo(Engine* other) {
  for (const TensorId tensor : CommittedTensors()) {
    const TensorSpec& spec = engine_->Spec(tensor);
    const auto read = [this, tensor, tile_bytes = spec.tile_bytes(0)](
                          uint64_t offset_bytes, std::span<std::byte> out) -> absl::Status {
      const TileRef tile = {tensor, offset_bytes / tile_bytes};
      SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine_->AcquireHost(tile, Access::kRead));
      std::memcpy(out.data(), lease.data() + offset_bytes % tile_bytes, out.size());
      return absl::OkStatus();
    };
    SPILLWAY_RETURN_IF_ERROR(other->Register(spec, read).status());
  }
  state_.loss_scale = scaler_.state();
  return other->Commit(SerializeTrainState(state_));
}

// A commit does not read tiles that are on NVMe already, so it could replace a good commit by one
// that cannot be read, or make a first one from which no run can continue. After a failed read,
// this leases every tile of a commit and returns the first error.
absl::Status Trainer::CheckReadable() {
  if (!may_be_unreadable_) return absl::OkStatus();
  for (const TensorId tensor : CommittedTensors()) {
    const uint64_t num_tiles = engine_->Spec(tensor).num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      // The first lease after a failed write reports that write, so a lease is tried twice.
      if (engine_->AcquireHost({tensor, tile}, Access::kRead).ok()) continue;
      SPILLWAY_RETURN_IF_ERROR(engine_->AcquireHost({tensor, tile}, Access::kRead).status());
    }
  }
  may_be_unreadable_ = false;
  return absl::OkStatus();
}

absl::Status Trainer::Commit() {
  if (!options_.durable || committed_step_ == state_.step) return absl::OkStatus();
  SPILLWAY_RETURN_IF_ERROR(CheckReadable());
  counted_.reset();
  state_.loss_scale = scaler_.state();
  const auto begin_ns = NowNs();
  SPILLWAY_RETURN_IF_ERROR(engine_->Commit(SerializeTrainState(state_)));
  committed_step_ = state_.step;
  const int64_t elapsed_ns = NowNs() - begin_ns;
  ++commits_;
  commit_seconds_ += static_cast<double>(elapsed_ns) / 1e9;
  step_begin_ns_ += elapsed_ns;  // the step takes what else is done between two steps
  return absl::OkStatus();
}

}  // namespace spillway::trainer
