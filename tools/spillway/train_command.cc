// SPDX-License-Identifier: Apache-2.0
//
// `spillway train`: from flags to a trained model. Everything that can be refused is refused before
// the store is touched.

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/store/store_view.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "src/base/status_macros.h"
#include "tools/hf/config.h"
#include "tools/spillway/accumulation_choice.h"
#include "tools/spillway/commands.h"
#include "tools/spillway/exit_code.h"
#include "tools/spillway/interrupt.h"
#include "tools/spillway/report.h"
#include "tools/spillway/train_flags.h"
#include "tools/trainer/export.h"
#include "tools/trainer/master_weights.h"
#include "tools/trainer/metrics/trace_file.h"
#include "tools/trainer/train_state.h"
#include "tools/trainer/trainer.h"
#include "tools/trainer/weight_source.h"

namespace spillway::command {
namespace {

using trainer::TokenData;
using trainer::TrainState;

constexpr char kDescription[] =
    "Fine-tune (or train) a language model whose state need not fit in memory.\n"
    "\n"
    "Examples:\n"
    "  spillway train --model smollm2 --data kjv --store run --steps 400 --precision fp16-amp \\\n"
    "      --device-bytes 48MiB --pinned-bytes 96MiB --lr 5e-5 --save tuned\n"
    "  spillway train ... --resume           # after Ctrl-C, a crash, or with a larger --steps\n"
    "  spillway train --model smollm2 --data kjv --steps 10     # all in memory, nothing kept\n"
    "  spillway train ... --store nvme0/run,nvme1/run --json --hash-weights\n"
    "  spillway train ... --store run --commit-every 50     # and at the end; kill -USR1 PID: now\n"
    "  spillway train ... --store run --durability none --save tuned    # scratch, half the disk\n"
    "  spillway train ... --log-json log.jsonl --trace trace.json    # spillway report reads "
    "them\n";

// Of how many steps the trace may tell: far more than kTraceEvents hold.
constexpr size_t kTraceSteps = 50'000;

// What is read before the store is touched.
struct Inputs {
  hf::ModelConfig config;
  std::unique_ptr<TokenData> train_data;
  std::unique_ptr<TokenData> valid_data;  // null unless evaluated
  trainer::WeightSource source;
};

// The folder's weights. A resumed run takes its own from the store, so that a folder without any is
// an error only when they are asked for.
absl::StatusOr<trainer::WeightSource> OpenWeights(const TrainFlags& flags,
                                                  const hf::ModelConfig& config) {
  if (flags.random_init) return trainer::RandomWeights(flags.trainer.seed);
  auto folder = trainer::OpenFolderWeights(flags.model, config);
  if (folder.ok() || !flags.resume) return folder;
  return [status = folder.status()](const std::string&,
                                    const std::vector<int64_t>&) -> absl::StatusOr<Reader> {
    return status;
  };
}

absl::StatusOr<Inputs> ReadInputs(const TrainFlags& flags) {
  Inputs inputs;
  const int64_t sequence = flags.trainer.model.sequence;
  SPILLWAY_ASSIGN_OR_RETURN(inputs.config, hf::ReadModelConfig(flags.model));
  const int64_t vocab_size = inputs.config.vocab_size;
  SPILLWAY_ASSIGN_OR_RETURN(inputs.train_data,
                            TokenData::Open(flags.data, "train", vocab_size, sequence));
  if (flags.trainer.evaluate_every > 0) {
    SPILLWAY_ASSIGN_OR_RETURN(inputs.valid_data,
                              TokenData::Open(flags.data, "valid", vocab_size, sequence));
  }
  SPILLWAY_ASSIGN_OR_RETURN(inputs.source, OpenWeights(flags, inputs.config));
  return inputs;
}

// Whether the store's last commit is of the run's last step: then none replaces it. Where it cannot
// be told, whoever opens the store says why.
bool HasNoStepLeft(const TrainFlags& flags) {
  if (!flags.resume || !flags.steps || flags.engine.store.empty()) return false;
  const auto view = io::StoreView::Open(flags.engine.store, io::StoreView::Wanted::kAnyState);
  if (!view.ok()) return false;
  const auto commit = (*view)->catalog().ReadCommit();
  if (!commit.ok() || !commit->has_value()) return false;
  const auto state = trainer::ParseTrainState((*commit)->user_state);
  return state.ok() && state->step >= *flags.steps;
}

// What the store has to hold.
StoreNeed NeedOf(const TrainFlags& flags, const hf::ModelConfig& config) {
  const trainer::TrainerOptions& options = flags.trainer;
  const bool commits_again = flags.resume || options.commit_every > 0;
  return {.state = trainer::ModelStateBytes(config, options.model),
          .keeps_old_copy = commits_again && !HasNoStepLeft(flags),
          .is_committed = options.durable};
}

// The budgets, the disk, the export's place, the log's and the trace's.
absl::Status CheckPlaces(const TrainFlags& flags, const hf::ModelConfig& config,
                         const StoreNeed& need) {
  if (!flags.save.empty()) SPILLWAY_RETURN_IF_ERROR(trainer::CheckExportFolder(flags.save));
  if (!flags.log_json.empty()) {
    // Whether it can be written; it is replaced only once the store is known to be free.
    SPILLWAY_RETURN_IF_ERROR(trainer::StepLog::CheckWritable(flags.log_json));
  }
  if (!flags.trace.empty()) {
    SPILLWAY_RETURN_IF_ERROR(trainer::StepLog::CheckWritable(flags.trace));
  }
  return CheckRoom(flags.engine, config, flags.trainer.model, need);
}

// Which way the micro-batches of a step go, if there are several; puts it into the flags. Room and
// budgets may leave one way only.
std::optional<AccumulationChoice> ChooseAccumulation(const hf::ModelConfig& config,
                                                     TrainFlags* flags) {
  trainer::ModelOptions& options = flags->trainer.model;
  if (options.accumulate == 1) return std::nullopt;
  AccumulationChoice choice = CompareOrders(config, options, flags->engine);
  options.accumulation_order = flags->accumulation_order.value_or(choice.order);
  const bool may_change = !flags->accumulation_order && options.by_layer();
  if (may_change && !CheckRoom(flags->engine, config, options, NeedOf(*flags, config)).ok()) {
    options.accumulation_order = trainer::AccumulationOrder::kMicroBatch;
  }
  choice.order = options.accumulation_order;
  return choice;
}

// The state to continue from; none: begin. Flags that would change its numbers are a usage error.
absl::StatusOr<std::optional<TrainState>> LoadState(const Engine& engine, const TrainFlags& flags,
                                                    const Inputs& inputs) {
  const std::optional<std::string> text = engine.UserState();
  if (!text) {
    if (flags.resume) {
      absl::FPrintF(stderr, "note: the store has no commit yet: starting at step 0\n");
    }
    return std::nullopt;
  }
  SPILLWAY_ASSIGN_OR_RETURN(TrainState state, trainer::ParseTrainState(*text));
  const auto given = trainer::FixedFlags(flags.trainer, inputs.config, *inputs.train_data,
                                         static_cast<int>(flags.engine.threads));
  const absl::Status same = trainer::CheckSameNumbers(state.fixed, given);
  if (absl::IsInvalidArgument(same)) return WithExitCode(same, ExitCode::kUsage);
  SPILLWAY_RETURN_IF_ERROR(same);
  absl::FPrintF(stderr, "note: continuing after step %d\n", state.step);
  return state;
}

// What is done with the weights once they are trained.
absl::Status Deliver(Engine* engine, const trainer::Trainer& trainer, const TrainFlags& flags,
                     const Inputs& inputs, TrainReport* report) {
  const std::vector<trainer::Parameter>& parameters = trainer.model().parameters();
  if (flags.hash_weights) {
    SPILLWAY_ASSIGN_OR_RETURN(report->weights_hash, trainer::HashWeights(engine, parameters));
  }
  if (flags.save.empty() || report->run.reason == trainer::EndReason::kInterrupted) {
    return absl::OkStatus();
  }
  const absl::Status saved =
      trainer::ExportModel(engine, parameters, inputs.config.json, flags.model, flags.save);
  // A file system that is full, not a budget.
  return absl::IsResourceExhausted(saved) ? WithExitCode(saved, ExitCode::kFailed) : saved;
}

OpenMode ModeOf(const TrainFlags& flags) {
  if (flags.durability == Durability::kNone) return OpenMode::kScratch;
  return flags.resume ? OpenMode::kOpenOrCreate : OpenMode::kCreate;
}

absl::StatusOr<TrainReport> Train(const TrainFlags& flags, const Inputs& inputs,
                                  const StoreNeed& need, const std::atomic<bool>& stop) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                            OpenEngine(flags.engine, ModeOf(flags), need, stop));
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TrainState> state,
                            LoadState(*engine, flags, inputs));
  std::unique_ptr<trainer::StepLog> log;
  if (!flags.log_json.empty()) {
    using trainer::StepLog;
    SPILLWAY_ASSIGN_OR_RETURN(log, flags.resume
                                       ? StepLog::Continue(flags.log_json, state ? state->step : 0)
                                       : StepLog::Create(flags.log_json));
  }
  ThreadPool pool(static_cast<int>(flags.engine.threads));
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<trainer::Trainer> trainer,
      trainer::Trainer::Create(engine.get(), &pool, inputs.config, flags.trainer,
                               inputs.train_data.get(), inputs.valid_data.get(), inputs.source,
                               state));

  std::deque<trainer::StepRecord> steps;  // for the trace
  bool told_why = false;
  const auto observe = [&](const trainer::StepRecord& record) -> absl::Status {
    if (!flags.trace.empty()) steps.push_back(record);
    if (steps.size() > kTraceSteps) steps.pop_front();
    absl::FPrintF(stderr, "%s\n", trainer::ToPeopleLine(record, *flags.steps));
    if (!record.plan.not_planned.empty() && !std::exchange(told_why, true))
      absl::FPrintF(
          stderr, "note: steps like this one are not planned, and tiles come when asked for: %s\n",
          record.plan.not_planned);
    return log == nullptr ? absl::OkStatus() : log->Write(record);
  };
  TrainReport report;
  const auto run = trainer->Run(observe, stop, &CatchCommitRequests());
  report.stats = engine->Stats();
  // Also of a run that failed: its timeline may say why. Its own failure is told first.
  const absl::Status traced = flags.trace.empty()
                                  ? absl::OkStatus()
                                  : trainer::WriteTrace(flags.trace, engine->TakeTimeline(), steps);
  SPILLWAY_ASSIGN_OR_RETURN(report.run, run);
  report.workspace_bytes = trainer->model().workspace_bytes();
  report.num_parameters = trainer->model().num_parameters();
  report.page_bytes = engine->page_bytes();
  report.threads = flags.engine.threads;
  SPILLWAY_RETURN_IF_ERROR(Deliver(engine.get(), *trainer, flags, inputs, &report));
  SPILLWAY_RETURN_IF_ERROR(traced);  // once the weights are safe
  return report;
}

absl::Status RunTrain(TrainFlags flags) {
  SPILLWAY_RETURN_IF_ERROR(FinishTrainFlags(&flags));
  SPILLWAY_ASSIGN_OR_RETURN(const Inputs inputs, ReadInputs(flags));
  const auto accumulation = ChooseAccumulation(inputs.config, &flags);
  const StorePlace place = PlaceOf(flags.engine);
  const StoreNeed need = NeedOf(flags, inputs.config);
  SPILLWAY_RETURN_IF_ERROR(CheckPlaces(flags, inputs.config, need));
  if (!flags.engine.store.empty()) {
    absl::FPrintF(stderr, "note: %s\n", DescribeStoreCost(place, need));
  }
  if (accumulation) absl::FPrintF(stderr, "note: %s\n", Describe(*accumulation));
  const std::atomic<bool>& stop = CatchInterrupts();
  absl::StatusOr<TrainReport> report = Train(flags, inputs, need, stop);
  if (!report.ok()) return WithRoomMissing(report.status(), place, need);
  report->accumulation = accumulation;
  absl::PrintF("%s", flags.json ? ToJson(*report).dump() + "\n" : ToText(*report));
  if (report->run.reason != trainer::EndReason::kInterrupted) return absl::OkStatus();
  return absl::CancelledError(
      flags.trainer.durable
          ? "interrupted after a complete step, which is committed; add --resume to continue"
      : flags.engine.store.empty() ? "interrupted; without --store nothing is kept"
                                   : "interrupted; with --durability none nothing is kept");
}

}  // namespace

void AddTrainCommand(CLI::App* app, Run* run) {
  CLI::App* const train = app->add_subcommand("train", kDescription);
  const auto flags = std::make_shared<TrainFlags>();
  AddTrainFlags(train, flags.get());
  train->callback([flags, run] { *run = [flags] { return RunTrain(*flags); }; });
}

}  // namespace spillway::command
