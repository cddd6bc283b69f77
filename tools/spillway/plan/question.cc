// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/question.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/this_machine.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

constexpr int64_t kMostStepTokens = int64_t{1} << 40;
constexpr int64_t kMostMicroBatchTokens = 1 << 20;  // as --batch of train
constexpr int64_t kMostAccumulate = 1 << 10;
constexpr double kMostParameters = 1e15;
constexpr int64_t kUsualSequence = 2048;
constexpr double kManyTiles = 1.5e5;
constexpr double kMostTiles = 1.5e6;  // of weights: more take minutes and gigabytes

// Exact up to 2^53, and never too large.
double CountParameters(const AskedModel& model) {
  double parameters = 0;
  const auto shapes =
      model.config ? trainer::ListParameters(*model.config) : model.counted->parameters;
  for (const trainer::ParameterShape& shape : shapes) {
    double elements = 1;
    for (const int64_t size : shape.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  return parameters;
}

// Sets micro-batches of the largest size for which `fits`. Of a step whose tokens are given, a
// micro-batch is a divisor; if none fits, it is the smallest, whose missing bytes the answer tells.
absl::Status Divide(int64_t windows, Question* question) {
  trainer::ModelOptions& options = question->options;
  const int64_t most = std::max<int64_t>(1, kMostMicroBatchTokens / options.sequence);
  for (int64_t batch = std::min(windows, most); batch >= 1; --batch) {
    if (windows % batch != 0) continue;
    options.micro_batch = batch;
    options.accumulate = windows / batch;
    if (batch == 1) break;
    SPILLWAY_ASSIGN_OR_RETURN(const bool fits, LeavesRoomForTiles(*question));
    if (fits) break;
  }
  return absl::OkStatus();
}

// Sets a step of the largest micro-batches of a power of two.
absl::Status Grow(Question* question) {
  trainer::ModelOptions& options = question->options;
  options.micro_batch = 1;
  while (2 * options.micro_batch * options.sequence <= kMostMicroBatchTokens) {
    Question larger = *question;
    larger.options.micro_batch *= 2;
    SPILLWAY_ASSIGN_OR_RETURN(const bool fits, LeavesRoomForTiles(larger));
    if (!fits) break;
    options.micro_batch *= 2;
  }
  question->tokens = options.sequence * options.micro_batch * options.accumulate;
  return absl::OkStatus();
}

// Sets what a step of --tokens consists of.
absl::Status DivideTokens(bool has_batch, Question* question) {
  trainer::ModelOptions& options = question->options;
  const int64_t windows = question->tokens / options.sequence;
  if (windows < 1 || windows * options.sequence != question->tokens) {
    return UsageError(
        absl::StrFormat("--tokens %d is no multiple of --seq %d: a step has whole windows",
                        question->tokens, options.sequence));
  }
  const int64_t largest = has_batch
                              ? options.micro_batch
                              : std::max<int64_t>(1, kMostMicroBatchTokens / options.sequence);
  if (windows > largest * kMostAccumulate) {
    return UsageError(absl::StrFormat(
        "--tokens %d are %d windows; at most %d micro-batches of %d window(s) are simulated",
        question->tokens, windows, kMostAccumulate, largest));
  }
  if (!has_batch) return absl::OkStatus();
  options.accumulate = windows / options.micro_batch;
  if (options.accumulate * options.micro_batch == windows) return absl::OkStatus();
  return UsageError(absl::StrFormat("--tokens %d are %d windows, no multiple of --batch %d",
                                    question->tokens, windows, options.micro_batch));
}

// Checks what of a recipe depends on the configuration.
absl::Status CheckRecipe(const Question& question) {
  const int64_t positions = question.config().max_position_embeddings;
  if (question.options.sequence > positions) {
    return UsageError(absl::StrFormat("--seq %d is more than the model's %d positions",
                                      question.options.sequence, positions));
  }
  return CheckPatterns(question.options.groups, question.config());
}

// Completes the step of a model with a configuration.
absl::Status ReadStep(const std::optional<int64_t>& tokens, bool has_batch, Question* question) {
  trainer::ModelOptions& options = question->options;
  options.tiles = trainer::TilesWithin(question->config(), options, question->placement,
                                       question->device_bytes(), question->pinned_bytes());
  question->chose_tokens = !tokens && !has_batch;
  question->chose_micro_batch = !has_batch;
  question->tokens = tokens.value_or(options.sequence * options.micro_batch * options.accumulate);
  if (tokens) SPILLWAY_RETURN_IF_ERROR(DivideTokens(has_batch, question));
  return ChooseMicroBatch(question);
}

void AddModelGroup(CLI::App* app, QuestionFlags* flags) {
  flags->recipe.trainer.model.sequence = 0;     // none given
  flags->recipe.trainer.model.micro_batch = 0;  // none given
  flags->recipe.trainer.model.precision = trainer::Precision::kBf16;
  BeginGroup(app, "Model");
  AddModelFlags(app, &flags->recipe.model, &flags->dimensions);
}

}  // namespace

void AddModelQuestionFlags(CLI::App* app, QuestionFlags* flags) {
  AddModelGroup(app, flags);
  AddRecipeFlags(app, &flags->recipe);
}

void AddQuestionFlags(CLI::App* app, QuestionFlags* flags) {
  AddModelGroup(app, flags);
  BeginGroup(app, "Machine");
  AddMachineFlags(app, &flags->machine);
  AddSize(app, "--device-bytes", &flags->recipe.engine.device_bytes,
          "Of the GPU's memory, what the engine may take (default: 15/16)");
  AddSize(app, "--pinned-bytes", &flags->recipe.engine.pinned_bytes,
          "Of --dram, what the engine may take (default: 7/8)");
  AddParsed(
      app, "--tokens", &flags->tokens,
      [](const std::string& text) { return ParseInteger(text, 1, kMostStepTokens); },
      "Of a step; micro-batches follow: the largest that fits, or those of --batch")
      .Type("N");
  AddRecipeFlags(app, &flags->recipe);
  MoveToGroup(app, "Recipe, as of train", {"--tokens"});
}

uint64_t Question::device_bytes() const {
  return std::min(most_device_bytes, hardware.gpu.memory_bytes / 16 * 15);
}

uint64_t Question::pinned_bytes() const {
  return std::min(most_pinned_bytes, hardware.dram_bytes / 8 * 7);
}

StepRates Question::rates() const {
  StepRates rates;
  rates.compute.flops_16bit = hardware.gpu.flops * hardware.flops_share;
  // Under fp16-amp the host keeps the scaled gradient in fp32; a device multiplies it in 16 bits.
  rates.compute.flops_fp32 = options.precision == trainer::Precision::kFp32
                                 ? hardware.gpu.flops_fp32 * hardware.flops_share
                                 : rates.compute.flops_16bit;
  rates.compute.bytes_per_second = hardware.gpu.memory_bytes_per_second;
  rates.compute.is_host = hardware.gpu.name == kThisMachine;
  rates.update_bytes_per_second = hardware.update_rate;
  return rates;
}

absl::StatusOr<Question> ReadQuestion(QuestionFlags flags) {
  const bool has_batch = flags.recipe.trainer.model.micro_batch > 0;
  const std::optional<int64_t> tokens = flags.tokens;
  const MachineFlags machine = flags.machine;
  SPILLWAY_ASSIGN_OR_RETURN(Question question, ReadModelQuestion(std::move(flags)));
  SPILLWAY_ASSIGN_OR_RETURN(question.hardware, ReadMachine(machine));
  question.options.on_gpu = question.hardware.gpu.name != kThisMachine;
  if (question.model.config) SPILLWAY_RETURN_IF_ERROR(ReadStep(tokens, has_batch, &question));
  return question;
}

absl::StatusOr<Question> ReadModelQuestion(QuestionFlags flags) {
  Question question;
  SPILLWAY_ASSIGN_OR_RETURN(question.model, ReadModel(flags.recipe.model, flags.dimensions));
  SPILLWAY_ASSIGN_OR_RETURN(question.placement, PlacementOf(flags.recipe.engine.placement));
  question.most_device_bytes = flags.recipe.engine.device_bytes;
  question.most_pinned_bytes = flags.recipe.engine.pinned_bytes;
  question.keeps_commits = flags.recipe.durability == Durability::kCommit;
  question.rule = flags.recipe.optimizer.kind;

  trainer::ModelOptions& given = flags.recipe.trainer.model;
  if (given.sequence == 0) {
    const auto& config = question.model.config;
    given.sequence = std::min(kUsualSequence, config ? config->max_position_embeddings : 1);
  }
  if (given.micro_batch == 0) given.micro_batch = 1;
  SPILLWAY_RETURN_IF_ERROR(FinishRecipeFlags(&flags.recipe));
  question.options = given;
  question.options.training = true;
  question.options.accumulation_order =
      flags.recipe.accumulation_order.value_or(trainer::AccumulationOrder::kLayer);
  const double parameters = CountParameters(question.model);
  if (parameters > kMostParameters) {
    return UsageError(
        absl::StrFormat("the model has %.3g parameters; at most 10^15 are planned", parameters));
  }
  question.num_parameters = static_cast<uint64_t>(parameters);
  if (question.model.config) SPILLWAY_RETURN_IF_ERROR(CheckRecipe(question));
  question.tokens =
      question.options.sequence * question.options.micro_batch * question.options.accumulate;
  return question;
}

absl::Status ChooseMicroBatch(Question* question) {
  if (!question->chose_micro_batch) return absl::OkStatus();
  if (question->chose_tokens) return Grow(question);
  return Divide(question->tokens / question->options.sequence, question);
}

absl::Status CheckSimulable(const Question& question) {
  if (!question.model.config) {
    return UsageError(absl::StrCat(question.model.title,
                                   ": a step is simulated of a known model type alone; spillway "
                                   "plan counts the bytes: ",
                                   question.model.why_counted));
  }
  const trainer::Description model = trainer::Describe(question.config());
  const auto values = static_cast<double>(trainer::TilesOf(model, question.options).values);
  const double tiles = static_cast<double>(question.num_parameters) / values +
                       static_cast<double>(model.parameters.size());
  if (tiles > kMostTiles) {
    return UsageError(absl::StrFormat(
        "the weights have %.3g tiles; at most %.3g are simulated, which are some %.3g parameters. "
        "spillway plan answers at once, with larger tiles",
        tiles, kMostTiles, kMostTiles * values));
  }
  if (tiles > kManyTiles)
    absl::FPrintF(stderr, "note: %.3g tiles of weights take minutes and gigabytes\n", tiles);
  return absl::OkStatus();
}

}  // namespace spillway::command
