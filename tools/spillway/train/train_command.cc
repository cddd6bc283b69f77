// SPDX-License-Identifier: Apache-2.0
//
// `spillway train`: trains a model as the flags say. Every error that can be found early is
// reported before the store is touched.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/store_view.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "src/base/available_memory.h"
#include "src/base/status_macros.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/weight_progress.h"
#include "tools/spillway/machine/machine_profile.h"
#include "tools/spillway/train/accumulation_choice.h"
#include "tools/spillway/train/auto_choice.h"
#include "tools/spillway/train/computing.h"
#include "tools/spillway/train/inference.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/spillway/train/predicted_step.h"
#include "tools/spillway/train/run_outputs.h"
#include "tools/spillway/train/run_places.h"
#include "tools/spillway/train/state_conversion.h"
#include "tools/spillway/train/train_flags.h"
#include "tools/spillway/train/train_report.h"
#include "tools/trainer/export.h"
#include "tools/trainer/fixed_flags.h"
#include "tools/trainer/master_weights.h"
#include "tools/trainer/parameters.h"
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
    "  spillway train --model smollm2 --data kjv --store run --steps 400 --auto --tokens 4096\n"
    "  spillway train ... --resume           # after Ctrl-C, a crash, or with a larger --steps\n"
    "  spillway train ... --resume --state-format compact --convert    # the same run, in fewer "
    "bytes\n"
    "  spillway train --model smollm2 --data kjv --steps 10     # all in memory, nothing kept\n"
    "  spillway train ... --store nvme0/run,nvme1/run --json --hash-weights\n"
    "  spillway train ... --store run --commit-every 50     # and at the end; kill -USR1 PID: now\n"
    "  spillway train ... --store run --durability none --save tuned    # scratch, half the disk\n"
    "  spillway train ... --log-json log.jsonl --trace trace.json    # spillway report reads "
    "them\n"
    "  spillway train ... --metrics-file /var/lib/node_exporter/spillway.prom    # Prometheus\n"
    "\n"
    "In the line of a step, nvme is the rate at which bytes went to and from NVMe, and stall is\n"
    "the time that the step waited for bytes. mfu (model FLOP utilisation) compares the model's\n"
    "operations a second with those of matrix products alone, measured here at the start.\n";

// The files that are read before the store is touched.
struct Inputs {
  hf::ModelConfig config;
  std::unique_ptr<TokenData> train_data;
  std::unique_ptr<TokenData> valid_data;  // null if there are no evaluations
  trainer::WeightSource source;
};

// Returns the source of the first weights. A resumed run takes its weights from the store, so for
// it a folder without weights is an error only when weights are read from it.
absl::StatusOr<trainer::WeightSource> OpenWeights(const TrainFlags& flags,
                                                  const hf::ModelConfig& config) {
  if (flags.random_init) return trainer::RandomWeights(flags.trainer.seed);
  auto folder = trainer::OpenFolderWeights(flags.model, config);
  if (folder.ok() || !flags.resume) return folder;
  return [status = folder.status()](const trainer::ParameterShape&) -> absl::StatusOr<Reader> {
    return status;
  };
}

absl::StatusOr<Inputs> ReadInputs(const TrainFlags& flags) {
  Inputs inputs;
  const int64_t sequence = flags.trainer.model.sequence;
  SPILLWAY_ASSIGN_OR_RETURN(inputs.config, hf::ReadModelConfig(flags.model));
  SPILLWAY_RETURN_IF_ERROR(CheckSequence(sequence, inputs.config));
  if (inputs.config.dropout > 0 && !flags.no_dropout) {
    return UsageError(absl::StrFormat(
        "%s/config.json: %s is %g, and training computes no dropout; give --dropout 0 to train "
        "without it",
        flags.model, inputs.config.dropout_key, inputs.config.dropout));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckPatterns(flags.trainer.model.groups, inputs.config));
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

// Returns the user state of the last commit of the store that the run resumes. None if there is no
// commit or it cannot be read; opening the store reports why.
std::optional<std::string> LastUserState(const TrainFlags& flags) {
  if (!flags.resume || flags.engine.store.empty()) return std::nullopt;
  const auto view = io::StoreView::Open(flags.engine.store, io::StoreView::Wanted::kAnyState);
  if (!view.ok()) return std::nullopt;
  const auto commit = (*view)->catalog().ReadCommit();
  if (!commit.ok() || !commit->has_value()) return std::nullopt;
  return (*commit)->user_state;
}

// Returns the tiles of the run: those of the store that it resumes, or of a new run those that the
// budgets have room for.
absl::StatusOr<trainer::TileSizes> ChooseTiles(const TrainFlags& flags,
                                               const hf::ModelConfig& config) {
  if (const std::optional<std::string> last = LastUserState(flags)) {
    const auto state = trainer::ParseTrainState(*last);  // LoadState reports an error
    if (state.ok()) return trainer::TilesOfStore(trainer::Describe(config), state->tiles);
  }
  return TilesFor(flags.engine, config, flags.trainer.model);
}

// Checks the values of the weights with which a run begins, before the store is touched. A run that
// resumes a commit has its weights there.
absl::Status CheckWeights(const TrainFlags& flags, const Inputs& inputs) {
  if (flags.random_init || LastUserState(flags)) return absl::OkStatus();
  WeightProgress progress("checked", inputs.config);
  const absl::Status finite = trainer::CheckFinite(inputs.config, progress.Watch(inputs.source));
  if (finite.ok()) return finite;
  return absl::Status(finite.code(),
                      absl::StrCat("--model ", flags.model, ": ", std::string(finite.message())));
}

// Whether the store's last commit is of the run's last step or a later one. Then no commit replaces
// it, and the run only exports.
bool HasNoStepLeft(const TrainFlags& flags) {
  const std::optional<std::string> last = flags.steps ? LastUserState(flags) : std::nullopt;
  if (!last) return false;
  const auto state = trainer::ParseTrainState(*last);
  return state.ok() && state->step >= *flags.steps;
}

// Returns what the store must hold.
StoreNeed NeedOf(const TrainFlags& flags, const hf::ModelConfig& config) {
  const trainer::TrainerOptions& options = flags.trainer;
  const bool commits_again = flags.resume || options.commit_every > 0;
  return {.state = trainer::ModelStateBytes(config, options.model),
          .keeps_old_copy = commits_again && !HasNoStepLeft(flags),
          .is_committed = options.durable};
}

// Checks the budgets and the disk space of the store, and of the export beside it.
absl::Status CheckSpace(const TrainFlags& flags, const hf::ModelConfig& config,
                        const StoreNeed& need) {
  SPILLWAY_RETURN_IF_ERROR(CheckRoom(flags.engine, config, flags.trainer.model, need));
  if (flags.save.empty() || flags.engine.store.empty() || HasNoStepLeft(flags))
    return absl::OkStatus();
  return CheckRoomForExport(PlaceOf(flags.engine), need, flags.save,
                            trainer::ExportedBytes(trainer::ListParameters(config)));
}

// Checks the budgets, the disk space, the output files and the export's folder.
absl::Status CheckPlaces(const TrainFlags& flags, const hf::ModelConfig& config,
                         const StoreNeed& need) {
  SPILLWAY_RETURN_IF_ERROR(CheckApart({{"--log-json", flags.outputs.log_json},
                                       {"--trace", flags.outputs.trace},
                                       {"--metrics-file", flags.outputs.metrics}},
                                      flags.save, flags.engine.store));
  if (!flags.save.empty()) {
    const uint64_t bytes = trainer::ExportedBytes(trainer::ListParameters(config));
    const absl::Status free = trainer::CheckExportFolder(flags.save, bytes);
    if (!free.ok()) {
      return absl::Status(free.code(), absl::StrCat("--save ", std::string(free.message())));
    }
  }
  return CheckSpace(flags, config, need);
}

// A run that is resumed where no store is begins at step 0 and cuts the log off. FailedPrecondition
// if that would lose steps of a run whose store is elsewhere, perhaps on a disk that is not
// mounted. A store without a commit is that of a run that was killed before its first one.
absl::Status CheckStoreOfLog(const TrainFlags& flags, const RunOutputs& outputs) {
  if (!flags.resume) return absl::OkStatus();
  const absl::Status found =
      io::StoreView::Open(flags.engine.store, io::StoreView::Wanted::kAnyState).status();
  if (!absl::IsNotFound(found)) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(const bool has_steps, outputs.LogHasSteps());
  if (!has_steps) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "--resume: there is no store in --store %s, but --log-json %s has steps of a run; mount the "
      "disk or name the folder that has the run's store, or leave --resume out to begin anew, "
      "which "
      "empties the log",
      absl::StrJoin(flags.engine.store, ","), flags.outputs.log_json));
}

// Chooses the order of a step's micro-batches and sets it in the flags. None if a step has a single
// micro-batch. Takes micro-batch order if the budgets or the disk have no room for layer order,
// unless the user gave the order.
std::optional<AccumulationChoice> ChooseAccumulation(const hf::ModelConfig& config,
                                                     TrainFlags* flags) {
  trainer::ModelOptions& options = flags->trainer.model;
  if (options.accumulate == 1) return std::nullopt;
  AccumulationChoice choice = CompareOrders(config, options, flags->engine);
  options.accumulation_order = flags->accumulation_order.value_or(choice.order);
  const bool may_change = !flags->accumulation_order && options.by_layer();
  if (may_change && !CheckSpace(*flags, config, NeedOf(*flags, config)).ok()) {
    options.accumulation_order = trainer::AccumulationOrder::kMicroBatch;
  }
  choice.order = options.accumulation_order;
  return choice;
}

// Opens the GPU, if one computes, and measures its rates.
absl::StatusOr<std::unique_ptr<trainer::GpuCompute>> OpenGpuOf(const TrainFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(
      auto gpu, OpenGpuFor(flags.engine, trainer::ElementType(flags.trainer.model.precision)));
  if (gpu != nullptr) gpu->MeasureRates();
  return gpu;
}

// Measures the machine if it is not known, lets --auto choose, and says why.
absl::StatusOr<AutoChoice> Choose(const hf::ModelConfig& config, uint64_t memory_bytes,
                                  trainer::GpuCompute* gpu, TrainFlags* flags) {
  std::optional<TrainState> resumed;
  if (const auto last = LastUserState(*flags)) {
    SPILLWAY_ASSIGN_OR_RETURN(resumed, trainer::ParseTrainState(*last));
  }
  const ProfileOptions profile = {.threads = flags->engine.threads,
                                  .cache = CacheFolder(),
                                  .stop = &CatchInterrupts(),
                                  .announce = [](std::string_view text) {
                                    absl::FPrintF(stderr, "note: %s\n",
                                                  absl::string_view(text.data(), text.size()));
                                  }};
  const auto measure = [&] { return ProfileOfAll(flags->engine.store, profile); };
  std::optional<GpuAtHand> at_hand;
  if (gpu != nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free_bytes, gpu->FreeBytes());
    at_hand = {.name = gpu->computed_by()->gpu, .rates = gpu->rates(), .free_bytes = free_bytes};
  }
  SPILLWAY_ASSIGN_OR_RETURN(AutoChoice choice,
                            ChooseFlags(config, measure, memory_bytes, at_hand, resumed, flags));
  absl::FPrintF(stderr, "%s", choice.why);
  return choice;
}

// Returns the state to continue from; none if the run starts at step 0. UsageError if flags would
// change the run's numbers.
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
  if (!same.ok()) return WithExitCode(same, ExitCode::kUsage);
  absl::FPrintF(stderr, "note: continuing after step %d\n", state.step);
  return state;
}

absl::Status KeepIn(const std::string& folder, const TrainFlags& flags,
                    const hf::ModelConfig& config, const StoreNeed& need,
                    trainer::Trainer* trainer) {
  const std::atomic<bool> stop{false};
  EngineFlags kept = flags.engine;
  kept.store = {folder};
  kept.store_bytes = kUnlimited;
  kept.device = Device::Host();
  kept.placement = {};
  kept.calibrate = CalibrateChoice::kOff;
  kept.timeline_events = 0;
  const auto smallest = trainer::SmallestBudgets(config, flags.trainer.model, {});
  kept.device_bytes = smallest.device_bytes;
  kept.pinned_bytes = 2 * smallest.pinned_bytes;
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                            OpenEngine(kept, OpenMode::kCreate, need, stop));
  return trainer->CommitTo(engine.get());
}

// Commits the trained state to a new store, because the run's own does not have it. Returns the
// store's folder. It lies beside the export's folder; if that fails, perhaps because of the same
// disk, in the working folder or in the folder for temporary files.
absl::StatusOr<std::string> KeepInStore(const TrainFlags& flags, const hf::ModelConfig& config,
                                        const StoreNeed& need, trainer::Trainer* trainer) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path save = fs::path(flags.save + "/").parent_path();
  std::vector<fs::path> places = {fs::absolute(save, error).parent_path()};
  if (fs::current_path(error) != places[0]) places.push_back(fs::current_path(error));
  // All users share the folder for temporary files, so a folder that only this user can read is
  // made in it.
  std::string own = (fs::temp_directory_path(error) / "spillway-XXXXXX").string();
  if (mkdtemp(own.data()) != nullptr) places.emplace_back(own);
  absl::Status first = absl::OkStatus();
  for (const fs::path& place : places) {
    std::string folder = (place / save.filename()).string() + ".store";
    const std::string name = folder;
    for (int i = 2; fs::exists(fs::symlink_status(folder, error)); ++i) {
      folder = absl::StrCat(name, "-", i);
    }
    const absl::Status kept = KeepIn(folder, flags, config, need, trainer);
    if (kept.ok()) {
      rmdir(own.c_str());  // fails if the store is in it
      return folder;
    }
    first.Update(kept);
  }
  rmdir(own.c_str());
  return first;
}

// Returns the error with a message that says where the trained state is. If no store has it, puts
// it into a new one.
absl::Status WhereItIs(const absl::Status& failed, const TrainFlags& flags,
                       const hf::ModelConfig& config, const StoreNeed& need,
                       trainer::Trainer* trainer) {
  const ExitCode code = absl::IsDataLoss(failed) ? ExitCode::kCorrupt : ExitCode::kFailed;
  std::string store = absl::StrJoin(flags.engine.store, ",");
  if (!trainer->is_committed()) {
    const auto kept = KeepInStore(flags, config, need, trainer);
    if (!kept.ok()) {
      return WithExitCode(
          absl::Status(failed.code(),
                       absl::StrFormat(
                           "%s; nor could the trained state be kept in a store beside --save: %s",
                           std::string(failed.message()), std::string(kept.status().message()))),
          code);
    }
    store = *kept;
  }
  return WithExitCode(
      absl::Status(
          failed.code(),
          absl::StrFormat("%s; nothing is lost: the store %s has the trained state. Go on "
                          "with --store %s --resume, or export it with: spillway "
                          "snapshot export %s --save FOLDER --model %s",
                          std::string(failed.message()), store, store, store, flags.model)),
      code);
}

absl::Status Export(const TrainFlags& flags, const hf::ModelConfig& config, Engine* engine,
                    const trainer::Model& model) {
  WeightProgress progress("exported", config);
  return trainer::ExportWeights(trainer::ListParameters(config),
                                progress.Watch(trainer::MasterWeights(engine, model.parameters())),
                                config.json, flags.model, flags.save);
}

// Exports the model if the run is done. It does so also if the last commit failed, because --save
// may be on another disk. Returns the error of the commit or else of the export, with a message
// that says where the trained state is.
absl::Status Save(const TrainFlags& flags, const Inputs& inputs, const StoreNeed& need,
                  const trainer::RunSummary& run, Engine* engine, trainer::Trainer* trainer) {
  // The store still exists here: the room that is missing follows from how much it has taken.
  absl::Status status = WithRoomMissing(run.commit, PlaceOf(flags.engine), need);
  if (flags.save.empty()) return status;
  if (run.reason != trainer::EndReason::kInterrupted) {
    const absl::Status exported = Export(flags, inputs.config, engine, trainer->model());
    const std::string words =
        exported.ok()
            ? absl::StrCat("; the model is exported to ", flags.save)
            : absl::StrCat("; nor could it be exported: ", std::string(exported.message()));
    status = status.ok()
                 ? exported
                 : absl::Status(status.code(), absl::StrCat(std::string(status.message()), words));
  }
  return status.ok() ? status : WhereItIs(status, flags, inputs.config, need, trainer);
}

OpenMode ModeOf(const TrainFlags& flags) {
  if (flags.durability == Durability::kNone) return OpenMode::kScratch;
  return flags.resume ? OpenMode::kOpenOrCreate : OpenMode::kCreate;
}

void TellWhereItGoesOn(const TrainState& state, const TrainFlags& flags) {
  const trainer::Schedule& schedule = flags.trainer.schedule;
  if (state.step >= *flags.steps) {
    absl::FPrintF(stderr,
                  "note: the store is at step %d of --steps %d, so there is nothing left to do; "
                  "give more steps to train on\n",
                  state.step, *flags.steps);
  } else if (schedule.kind == trainer::ScheduleKind::kCosine && state.total_steps > 0 &&
             state.total_steps != *flags.steps) {
    absl::FPrintF(stderr,
                  "note: the cosine reaches 0 at --steps %d now, and did at %d before, so the "
                  "learning rate jumps here\n",
                  *flags.steps, state.total_steps);
  }
}

// Says that a resumed run may have other bits than one that was not interrupted.
void TellOfOtherGpu(const TrainState& state, const trainer::Compute& compute) {
  const std::optional<trainer::ComputedBy> by = compute.computed_by();
  if (!by || state.computed_by == trainer::Summary(*by)) return;
  absl::FPrintF(
      stderr,
      "note: the steps so far were computed by other means, so bits may differ from those "
      "of a run that was not interrupted. Before: %s. Now: %s\n",
      state.computed_by, trainer::Summary(*by));
}

// Loads the weights of a new run from its source, and otherwise from the store.
absl::StatusOr<std::unique_ptr<trainer::Trainer>> CreateTrainer(
    const TrainFlags& flags, const Inputs& inputs, const std::optional<TrainState>& state,
    std::unique_ptr<trainer::GpuCompute> gpu, Engine* engine, ThreadPool* pool) {
  SPILLWAY_ASSIGN_OR_RETURN(auto compute, BeginComputing(std::move(gpu), engine, pool));
  if (state) TellOfOtherGpu(*state, *compute);
  WeightProgress progress("loaded", inputs.config);
  return trainer::Trainer::Create(engine, pool, std::move(compute), inputs.config, flags.trainer,
                                  inputs.train_data.get(), inputs.valid_data.get(),
                                  progress.Watch(inputs.source), state);
}

// The result of a run: its figures, and the status of the last commit and the export.
struct Outcome {
  TrainReport report;
  absl::Status saved;
};

absl::StatusOr<Outcome> Train(const TrainFlags& flags, const Inputs& inputs, const StoreNeed& need,
                              std::unique_ptr<trainer::GpuCompute> gpu, RunOutputs* outputs,
                              const std::atomic<bool>& stop, std::atomic<bool>& commit_now) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                            OpenEngine(flags.engine, ModeOf(flags), need, stop));
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TrainState> state,
                            LoadState(*engine, flags, inputs));
  ThreadPool pool(static_cast<int>(flags.engine.threads));
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<trainer::Trainer> trainer,
      CreateTrainer(flags, inputs, state, std::move(gpu), engine.get(), &pool));
  outputs->Begin(state ? state->step : 0, flags.resume);
  if (state) TellWhereItGoesOn(*state, flags);

  bool told_why = false;
  LastStep last_step;
  const auto observe = [&](const trainer::StepRecord& record) -> absl::Status {
    absl::FPrintF(stderr, "%s\n", trainer::ToPeopleLine(record, *flags.steps));
    if (!record.evaluation_error.empty()) {
      absl::FPrintF(stderr, "warning: the validation failed, and the run goes on: %s\n",
                    record.evaluation_error);
    }
    if (!record.plan.not_planned.empty() && !std::exchange(told_why, true)) {
      const bool repeats = flags.trainer.model.accumulate > 1 && !flags.trainer.model.by_layer();
      absl::FPrintF(
          stderr,
          "note: steps like this one are not planned, and tiles come when asked for: %s%s%s\n",
          record.plan.not_planned,
          repeats ? "; fewer micro-batches (--accumulate) have fewer leases, and so has "
                    "--accumulation-order layer"
                  : "",
          flags.trainer.evaluate_every > 0
              ? "; an evaluation is a step, and has fewer leases with fewer --eval-batches"
              : "");
    }
    outputs->Take(record, *flags.steps);
    last_step.Take(record, engine.get());
    return absl::OkStatus();
  };
  Outcome outcome;
  TrainReport& report = outcome.report;
  const auto run = trainer->Run(observe, stop, &commit_now);
  report.stats = engine->Stats();
  outputs->TakeTotals(report.stats);
  // Also for a run that failed: its timeline may show why.
  if (outputs->wants_timeline()) outputs->End(engine->TakeTimeline());
  // The store still exists here: the room that is missing follows from how much it has taken.
  if (!run.ok()) return WithRoomMissing(run.status(), PlaceOf(flags.engine), need);
  report.run = *run;
  report.predicted = last_step.Predict();
  // The engine's last step may be an evaluation. What a plan foretells is reported of a training
  // step.
  PlanStats& plan = report.stats.plan;
  plan.nvme = run->plan.nvme;
  plan.pinned = run->plan.pinned;
  plan.planned_bytes = run->plan.planned_bytes;
  plan.bytes_bound = run->plan.bytes_bound;
  plan.nvme_bytes_bound = run->plan.nvme_bytes_bound;
  // A failed write that no caller was told of would fail the first lease below.
  if (!report.run.commit.ok()) (void)engine->EndStep();
  report.lost_outputs = outputs->lost();
  report.workspace_bytes = trainer->model().workspace_bytes();
  report.num_parameters = trainer->model().num_parameters();
  report.page_bytes = engine->page_bytes();
  report.threads = flags.engine.threads;
  const std::vector<trainer::Parameter>& parameters = trainer->model().parameters();
  outcome.saved = Save(flags, inputs, need, report.run, engine.get(), trainer.get());
  if (flags.hash_weights) {
    const absl::StatusOr<std::string> hash = trainer::HashWeights(engine.get(), parameters);
    if (hash.ok()) report.weights_hash = *hash;
    if (outcome.saved.ok()) SPILLWAY_RETURN_IF_ERROR(hash.status());
  }
  return outcome;
}

std::string DescribeInterrupt(const TrainFlags& flags, const trainer::RunSummary& run) {
  if (flags.engine.store.empty()) return "interrupted; without --store nothing is kept";
  if (!flags.trainer.durable) return "interrupted; with --durability none nothing is kept";
  return run.steps_this_run == 0
             ? "interrupted before a step was done; add --resume to continue"
             : "interrupted after a complete step, which is committed; add --resume to continue";
}

absl::Status RunTrain(TrainFlags flags) {
  SPILLWAY_RETURN_IF_ERROR(FinishTrainFlags(&flags));
  if (const auto unused = DescribeUnusedFlags(flags))
    absl::FPrintF(stderr, "warning: %s\n", *unused);
  // Signals are caught from here on, so that a request during a long start takes effect at the end
  // of the first step.
  std::atomic<bool>& commit_now = CatchCommitRequests();
  SPILLWAY_ASSIGN_OR_RETURN(const Inputs inputs, ReadInputs(flags));
  std::unique_ptr<trainer::GpuCompute> gpu;
  std::optional<AutoChoice> chosen;
  if (flags.automatic.is_on) {
    const uint64_t memory_bytes = MemoryForRun(base::AvailableMemoryBytes());
    SPILLWAY_ASSIGN_OR_RETURN(gpu, OpenGpuOf(flags));
    SPILLWAY_ASSIGN_OR_RETURN(chosen, Choose(inputs.config, memory_bytes, gpu.get(), &flags));
  }
  SPILLWAY_ASSIGN_OR_RETURN(flags.trainer.model.tiles, ChooseTiles(flags, inputs.config));
  const auto accumulation = chosen ? std::nullopt : ChooseAccumulation(inputs.config, &flags);
  const StorePlace place = PlaceOf(flags.engine);
  const StoreNeed need = NeedOf(flags, inputs.config);
  SPILLWAY_RETURN_IF_ERROR(CheckPlaces(flags, inputs.config, need));
  if (gpu == nullptr) {
    SPILLWAY_ASSIGN_OR_RETURN(gpu, OpenGpuOf(flags));
  }
  SPILLWAY_RETURN_IF_ERROR(
      PrepareGpu(gpu.get(), inputs.config, flags.trainer.model, &flags.engine));
  TellWhatComputes(gpu.get());
  SPILLWAY_RETURN_IF_ERROR(CheckWeights(flags, inputs));
  SPILLWAY_ASSIGN_OR_RETURN(RunOutputs outputs, RunOutputs::Open(flags.outputs));
  SPILLWAY_RETURN_IF_ERROR(CheckStoreOfLog(flags, outputs));
  if (!flags.engine.store.empty()) {
    absl::FPrintF(stderr, "note: %s\n", DescribeStoreCost(place, need));
  }
  if (accumulation) absl::FPrintF(stderr, "note: %s\n", Describe(*accumulation));
  const std::string rate = DescribeRate(flags.trainer);
  if (!rate.empty()) absl::FPrintF(stderr, "note: %s\n", rate);
  const std::atomic<bool>& stop = CatchInterrupts();
  if (flags.convert) {
    const auto given = trainer::FixedFlags(flags.trainer, inputs.config, *inputs.train_data,
                                           static_cast<int>(flags.engine.threads));
    SPILLWAY_RETURN_IF_ERROR(ConvertStore(flags, inputs.config, given, stop));
  }
  SPILLWAY_ASSIGN_OR_RETURN(Outcome outcome,
                            Train(flags, inputs, need, std::move(gpu), &outputs, stop, commit_now));
  outcome.report.accumulation = accumulation;
  if (chosen) outcome.report.chosen = *std::move(chosen);
  absl::PrintF("%s", flags.json ? JsonText(ToJson(outcome.report)) + "\n" : ToText(outcome.report));
  if (!outcome.saved.ok()) return outcome.saved;
  if (outcome.report.run.reason != trainer::EndReason::kInterrupted) return absl::OkStatus();
  return absl::CancelledError(DescribeInterrupt(flags, outcome.report.run));
}

}  // namespace

void AddTrainCommand(CLI::App* app, Run* run) {
  CLI::App* const train = AddCommand(app, "train", kDescription);
  const auto flags = std::make_shared<TrainFlags>();
  AddTrainFlags(train, flags.get());
  WhenChosen(train, [train, flags, run] {
    NoteGiven(*train, &flags->automatic);
    *run = [flags] { return RunTrain(*flags); };
  });
}

}  // namespace spillway::command
