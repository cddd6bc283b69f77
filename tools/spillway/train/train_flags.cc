// SPDX-License-Identifier: Apache-2.0
//
// Declares, checks and completes the flags of `spillway train`.

#include "tools/spillway/train/train_flags.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/train/precision_flags.h"

namespace spillway::command {
namespace {

using trainer::AccumulationOrder;
using trainer::Order;
using trainer::Precision;
using trainer::ScheduleKind;

constexpr int64_t kMostSteps = 1'000'000'000'000;
constexpr double kMostNumber = std::numeric_limits<double>::max();
// How many of a run's newest events --trace records. Each takes 40 bytes of memory, and some 130
// bytes of the file.
constexpr uint64_t kTraceEvents = 500'000;
constexpr double kMostScale = std::numeric_limits<float>::max();

void AddInput(CLI::App* app, TrainFlags* flags) {
  AddText(app, "--model", &flags->model, "Hugging Face folder of the model");
  AddText(app, "--data", &flags->data, "Folder of tokens: train.npy, valid.npy, meta.json");
  AddChoice<bool>(app, "--init", &flags->random_init, {{"model", false}, {"random", true}},
                  "First weights: the model's, or normal with deviation 0.02 (norms 1, biases 0)");
  AddChoice<Order>(app, "--order", &flags->trainer.order,
                   {{"sequential", Order::kSequential}, {"shuffled", Order::kShuffled}},
                   "Windows in the order of the text, or in a seeded order for each epoch");
  AddSeed(app, "--seed", &flags->trainer.seed, "For random weights and the shuffled order");
  const auto parse_dropout = [](const std::string& text) -> absl::StatusOr<bool> {
    const auto rate = ParseNumber(text, {0, 0});
    if (rate.ok()) return true;
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not 0, the only rate that training computes", text));
  };
  AddParsed(app, "--dropout", &flags->no_dropout, parse_dropout,
            "Train without dropout a model whose config.json has a rate above 0")
      .Type("0");
}

void AddSteps(CLI::App* app, TrainFlags* flags) {
  const auto parse = [](const std::string& text) { return ParseInteger(text, 0, kMostSteps); };
  AddParsed(app, "--steps", &flags->steps, parse, "Steps in total, those before a resume included")
      .Type("N");
}

void AddMicroBatches(CLI::App* app, TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  // 0: the command chooses what is not given.
  const auto add = [app](const char* name, int64_t* value, const char* help) {
    const bool is_chosen = *value == 0;
    const AddedOption option = AddInteger(app, name, value, 1, kMostTokensOfMicroBatch, help);
    if (is_chosen) option.Default("");
  };
  add("--seq", &options.model.sequence, "Tokens of a window");
  add("--batch", &options.model.micro_batch, "Windows of a micro-batch");
  AddInteger(app, "--accumulate", &options.model.accumulate, 1, kMostMicroBatchesOfStep,
             "Micro-batches of a step");
  AddChoice<std::optional<AccumulationOrder>>(
      app, "--accumulation-order", &flags->accumulation_order,
      {{"auto", std::nullopt},
       {"micro-batch", AccumulationOrder::kMicroBatch},
       {"layer", AccumulationOrder::kLayer}},
      "Each micro-batch through all layers before the next, or all through a layer before the next "
      "layer; numbers are the same. auto (default) takes the order with the faster planned "
      "transfers; on a tie, micro-batch");
}

void AddLength(CLI::App* app, TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  AddSteps(app, flags);
  AddInteger(app, "--stop-after", &options.stop_after, 0, kMostSteps,
             "End after N steps of this run; 0: do not");
  AddMicroBatches(app, flags);
  AddInteger(app, "--eval-every", &options.evaluate_every, 0, kMostSteps,
             "Evaluate every N steps; 0: never");
  AddInteger(app, "--eval-batches", &options.evaluate_windows, 1, kMostSteps,
             "Windows of valid.npy that an evaluation takes");
}

void AddSchedule(CLI::App* app, TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  AddNumber(app, "--lr", &options.schedule.learning_rate, {0, 10},
            "Learning rate after the warm-up");
  AddInteger(app, "--warmup-steps", &options.schedule.warmup_steps, 0, kMostSteps,
             "Steps of linear warm-up");
  AddChoice<ScheduleKind>(
      app, "--schedule", &options.schedule.kind,
      {{"constant", ScheduleKind::kConstant}, {"cosine", ScheduleKind::kCosine}},
      "After the warm-up: constant, or a cosine that reaches 0 at --steps");
  AddNumber(app, "--clip", &options.clip_norm, {0, kMostNumber},
            "Largest norm of the gradient; 0: no clipping");
}

void AddTypes(CLI::App* app, TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  AddPrecisionFlags(
      app, &options.model.precision, &flags->optimizer.groups.fp32,
      "Of weights and activations; fp16-amp and bf16 keep master weights of what they "
      "train, and bf16 needs no loss scale");
  AddChoice<std::optional<DType>>(
      app, "--grad-dtype", &flags->gradient_dtype,
      {{"fp16", DType::kF16}, {"bf16", DType::kBF16}, {"fp32", DType::kF32}},
      "Of the gradients of 16-bit weights (default: the weights' type); those of fp32 weights are "
      "fp32");
  AddChoice<bool>(app, "--checkpoint-activations", &options.model.checkpoint_activations,
                  {{"on", true}, {"off", false}},
                  "Keep only each block's input and compute the rest again");
}

void AddLossScale(CLI::App* app, TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  AddNumber(app, "--loss-scale", &options.loss_scaler.initial_scale,
            {trainer::kSmallestLossScale, kMostScale}, "First loss scale under fp16-amp");
  AddNumber(app, "--loss-scale-growth", &options.loss_scaler.growth_factor, {1, kMostScale},
            "Its factor after a run of good steps");
  AddNumber(app, "--loss-scale-backoff", &options.loss_scaler.backoff_factor,
            {.least = 0, .most = 1, .open_least = true, .open_most = true},
            "Its factor after an overflow, whose step is skipped");
  AddInteger(app, "--loss-scale-interval", &options.loss_scaler.growth_interval, 1, kMostSteps,
             "Good steps in a row before it grows");
}

void AddDurability(CLI::App* app, TrainFlags* flags) {
  AddChoice<Durability>(
      app, "--durability", &flags->durability,
      {{"commit", Durability::kCommit}, {"none", Durability::kNone}},
      "none: the store is scratch, never synced, half the space, removed at the end");
}

void AddOutput(CLI::App* app, TrainFlags* flags) {
  AddInteger(app, "--commit-every", &flags->trainer.commit_every, 0, kMostSteps,
             "Commit every N steps; 0: when the run ends, and on SIGUSR1");
  AddDurability(app, flags);
  AddFlag(
      app, "--resume", &flags->resume,
      "Continue from the store's last commit, or begin if there is none; refused if there is no "
      "store and --log-json has steps");
  AddFlag(app, "--convert", &flags->convert,
          "With --resume: bring the store's optimizer state into the format of "
          "--state-format, as a commit of its own, before the run goes on");
  AddText(app, "--save", &flags->save, "Export a Hugging Face folder at the end");
  AddText(app, "--log-json", &flags->outputs.log_json,
          "A JSON line a step into this file; --resume continues it from the commit on, each step "
          "once");
  AddText(app, "--trace", &flags->outputs.trace,
          "The run's timeline into this file at its end, for ui.perfetto.dev and spillway report");
  AddText(app, "--metrics-file", &flags->outputs.metrics,
          "The newest step's figures in Prometheus's text format, replaced whole each step");
  AddFlag(app, "--force", &flags->outputs.force,
          "Replace what the three flags above name even if it is something else; never in "
          "the folder of a store or a model");
  AddFlag(app, "--hash-weights", &flags->hash_weights,
          "Report a hash of the weights in full, the master weights as fp32");
  AddFlag(app, "--json", &flags->json, "One JSON object on stdout at the end, nothing else there");
}

absl::Status Require(bool is_given, const char* flag) {
  return is_given ? absl::OkStatus()
                  : UsageError(absl::StrFormat("%s is needed; see spillway train --help", flag));
}

absl::Status CheckStoreFlags(const TrainFlags& flags) {
  if (flags.durability == Durability::kNone) {
    if (flags.resume) {
      return UsageError("--durability none keeps no commit to --resume from; give one of the two");
    }
    if (flags.trainer.commit_every > 0) {
      return UsageError("--durability none makes no commits; leave --commit-every out, or it");
    }
  }
  if (flags.convert && !flags.resume)
    return UsageError("--convert changes the state of a run that goes on; give --resume too");
  if (!flags.engine.store.empty()) return absl::OkStatus();
  if (flags.resume) return UsageError("--resume continues from a store; give --store DIR too");
  if (flags.trainer.commit_every > 0) {
    return UsageError("--commit-every commits to a store; give --store DIR too");
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainFlags(CLI::App* app, TrainFlags* flags) {
  flags->trainer.model.sequence = 256;
  BeginGroup(app, "Model and data");
  AddInput(app, flags);
  BeginGroup(app, "Memory");
  AddEngineFlags(app, &flags->engine,
                 "Folders for the store, one per drive: DIR or DIR,DIR. None: all in memory");
  AddAutoFlags(app, &flags->automatic);
  BeginGroup(app, "Training");
  AddLength(app, flags);
  AddTypes(app, flags);
  AddLossScale(app, flags);
  AddSchedule(app, flags);
  BeginGroup(app, "Optimizer");
  AddOptimizerFlags(app, &flags->optimizer);
  BeginGroup(app, "Output");
  AddOutput(app, flags);
  MoveToGroup(app, "Memory", {"--accumulation-order", "--checkpoint-activations"});
  MoveToGroup(app, "Training", {"--device", "--cublaslt", "--threads"});
  // --help is the first option of every command, so its group comes first.
  MoveToGroup(
      app, "What most runs need",
      {"--help", "--model", "--data", "--store", "--auto", "--device-bytes", "--pinned-bytes",
       "--steps", "--seq", "--batch", "--accumulate", "--precision", "--lr", "--resume", "--save"});
  BeginGroup(app, "Source of the flags");  // the command line offers these
}

void AddRecipeFlags(CLI::App* app, TrainFlags* flags) {
  BeginGroup(app, "Recipe, as of train");
  AddMicroBatches(app, flags);
  AddTypes(app, flags);
  AddPlacementFlags(app, &flags->engine.placement);
  AddDurability(app, flags);
  AddOptimizerFlags(app, &flags->optimizer);
}

absl::Status FinishTrainFlags(TrainFlags* flags) {
  SPILLWAY_RETURN_IF_ERROR(Require(!flags->model.empty(), "--model"));
  SPILLWAY_RETURN_IF_ERROR(Require(!flags->data.empty(), "--data"));
  SPILLWAY_RETURN_IF_ERROR(Require(flags->steps.has_value(), "--steps"));
  SPILLWAY_RETURN_IF_ERROR(CheckEngineFlags(flags->engine));
  SPILLWAY_RETURN_IF_ERROR(CheckStoreFlags(*flags));
  SPILLWAY_RETURN_IF_ERROR(CheckAutoFlags(flags->automatic));
  SPILLWAY_RETURN_IF_ERROR(FinishRecipeFlags(flags));

  trainer::TrainerOptions& options = flags->trainer;
  options.loss_scaler.enabled = options.model.precision == Precision::kFp16Amp;
  options.schedule.total_steps = *flags->steps;
  if (!flags->outputs.trace.empty()) flags->engine.timeline_events = kTraceEvents;
  options.model.on_gpu = flags->engine.device.kind() == Device::Kind::kCuda;
  options.durable = !flags->engine.store.empty() && flags->durability == Durability::kCommit;
  return absl::OkStatus();
}

absl::Status FinishRecipeFlags(TrainFlags* flags) {
  trainer::TrainerOptions& options = flags->trainer;
  const Precision precision = options.model.precision;
  SPILLWAY_RETURN_IF_ERROR(CheckPrecisionFlags(precision, flags->optimizer.groups.fp32));
  const DType own = trainer::ElementType(precision);
  options.model.gradient_dtype = flags->gradient_dtype.value_or(own);
  if (options.model.gradient_dtype != DType::kF32 && options.model.gradient_dtype != own) {
    return UsageError(absl::StrFormat(
        "--grad-dtype %s; give that, or leave --grad-dtype out",
        options.model.gradient_dtype == DType::kF16
            ? "fp16 needs --precision fp16-amp, whose loss scale keeps gradients within fp16"
            : "bf16 needs --precision bf16"));
  }
  if (options.model.micro_batch > kMostTokensOfMicroBatch / options.model.sequence) {
    return UsageError(absl::StrFormat(
        "--batch %d of --seq %d is more than %d tokens a micro-batch; use --accumulate",
        options.model.micro_batch, options.model.sequence, kMostTokensOfMicroBatch));
  }
  return FinishOptimizerFlags(flags->optimizer, &options);
}

std::optional<std::string> DescribeUnusedFlags(const TrainFlags& flags) {
  const trainer::LossScalerOptions& scaler = flags.trainer.loss_scaler;
  if (scaler.enabled || scaler == trainer::LossScalerOptions{.enabled = false}) return std::nullopt;
  return absl::StrFormat(
      "--loss-scale, and flags that begin with it, do nothing under --precision %s: fp16-amp alone "
      "scales the loss",
      std::string(Name(flags.trainer.model.precision)));
}

}  // namespace spillway::command
