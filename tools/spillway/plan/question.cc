// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/question.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/hf/file.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using base::View;

constexpr uint64_t kMostConfigBytes = 1 << 20;
constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr int64_t kMostMicroBatchTokens = 1 << 20;  // as --batch and --accumulate of train
constexpr int64_t kMostAccumulate = 1 << 10;
constexpr double kMostParameters = 1e15;
constexpr double kManyTiles = 1.5e5;
constexpr double kMostTiles = 1.5e6;  // of weights: more take minutes and gigabytes

absl::StatusOr<hf::ModelConfig> ReadConfig(const std::string& model) {
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored)) return hf::ReadModelConfig(model);
  if (std::filesystem::exists(model, ignored)) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::string json, hf::ReadTextFile(model, kMostConfigBytes));
    return hf::ParseModelConfig(json, model);
  }
  std::string names;
  for (const ModelPreset& preset : ModelPresets())
    absl::StrAppend(&names, names.empty() ? "" : ", ", View(preset.name));
  return UsageError(absl::StrCat("--model '", model,
                                 "' is neither a file, nor a folder, nor one "
                                 "of the presets: ",
                                 names));
}

absl::StatusOr<Hardware> ReadHardware(const QuestionFlags& flags) {
  Hardware hardware;
  const absl::StatusOr<Gpu> gpu = FindGpu(flags.gpu);
  if (!gpu.ok()) return UsageError(absl::StrCat("--gpu: ", gpu.status().message()));
  hardware.gpu = *gpu;
  hardware.dram_bytes = flags.dram_bytes.value_or(gpu->dram_bytes);
  if (hardware.dram_bytes == 0)
    return UsageError("--dram SIZE is needed: the memory of the machine, as 512GB");
  if (hardware.dram_bytes < (uint64_t{1} << 20)) return UsageError("--dram must be 1MiB or more");
  if (hardware.dram_bytes == kUnlimited)
    return UsageError("--dram must be a size: no machine's memory is unlimited");
  if (flags.drives) {
    hardware.drives = *flags.drives;
  } else if (gpu->drives > 0) {
    hardware.drives = {gpu->drives, gpu->drive_read, gpu->drive_write, gpu->drive_bytes};
  } else {
    return UsageError("--nvme DRIVES is needed, as 4x7GB/s:3.8TB");
  }
  hardware.link = flags.link.value_or(gpu->link);
  hardware.flops_share = flags.flops_share;
  hardware.update_rate = flags.update_rate;
  hardware.checksum = flags.checksum_rate;
  hardware.latency_seconds = flags.latency_seconds;
  hardware.jitter = flags.jitter;
  hardware.seed = flags.seed;
  return hardware;
}

// Sets micro-batches so that a step has these tokens.
absl::Status DivideTokens(int64_t tokens, bool has_batch, Question* question) {
  trainer::ModelOptions& options = question->options;
  const int64_t windows = tokens / options.sequence;
  const int64_t most = std::max<int64_t>(1, kMostMicroBatchTokens / options.sequence);
  if (windows < 1 || windows * options.sequence != tokens) {
    return UsageError(
        absl::StrFormat("--tokens %d is no multiple of --seq %d: a step has whole windows", tokens,
                        options.sequence));
  }
  const int64_t largest = has_batch ? options.micro_batch : most;
  if (windows > largest * kMostAccumulate) {
    return UsageError(absl::StrFormat(
        "--tokens %d are %d windows; at most %d micro-batches of %d window(s) are simulated",
        tokens, windows, kMostAccumulate, largest));
  }
  if (has_batch) {
    options.accumulate = windows / options.micro_batch;
    if (options.accumulate * options.micro_batch == windows) return absl::OkStatus();
    return UsageError(absl::StrFormat("--tokens %d are %d windows, no multiple of --batch %d",
                                      tokens, windows, options.micro_batch));
  }
  question->chose_micro_batch = true;
  // The largest that leaves a quarter of the device for tiles. If none does, the smallest, whose
  // missing bytes the answer tells.
  for (int64_t batch = std::min(windows, most); batch >= 1; --batch) {
    if (windows % batch != 0) continue;
    options.micro_batch = batch;
    options.accumulate = windows / batch;
    if (batch == 1) break;
    trainer::ModelOptions one = options;  // micro-batches pass one after the other
    one.accumulate = 1;
    SPILLWAY_ASSIGN_OR_RETURN(const uint64_t workspace, WorkspaceBytes(question->config, one));
    const trainer::MinimumBudgets least =
        trainer::SmallestBudgets(question->config, one, question->placement);
    if (workspace + least.device_bytes <= question->device_bytes() / 4 * 3) break;
  }
  return absl::OkStatus();
}

}  // namespace

void AddQuestionFlags(CLI::App* app, QuestionFlags* flags) {
  flags->recipe.trainer.model.sequence = 0;     // none given
  flags->recipe.trainer.model.micro_batch = 0;  // none given
  flags->recipe.trainer.model.precision = trainer::Precision::kBf16;
  BeginGroup(app, "Model and machine");
  AddText(
      app, "--model", &flags->model,
      "A preset (1.1B, 7B, 13B, 70B, GPT-3, BLOOM, MT-NLG, PaLM, 1T), a config.json, or a folder "
      "that has one");
  AddText(app, "--gpu", &flags->gpu, "v100, a100, h100, h200, rtx4090, or the machine dgx-2");
  AddOption(
      app, "--dram",
      [flags](const std::string& text) -> absl::Status {
        SPILLWAY_ASSIGN_OR_RETURN(flags->dram_bytes, base::ParseBytes(text));
        return absl::OkStatus();
      },
      "Memory of the machine; the engine may take 7/8 of it")
      .Type("SIZE");
  AddParsed(app, "--nvme", &flags->drives, ParseDrives,
            "Drives: 8x7GB/s:3.8TB, or with a rate for writes 8x7/5GB/s:3.8TB")
      .Type("DRIVES");
  AddParsed(app, "--link", &flags->link, ParseRate,
            "Between memory and GPU, in one direction; default: the GPU's")
      .Type("RATE");
  AddNumber(app, "--flops-share", &flags->flops_share, {.least = 1e-6, .most = 1},
            "Of the GPU's peak that products reach");
  AddParsed(app, "--update-rate", &flags->update_rate, ParseRate,
            "Bytes of state, weights and gradients that the CPU updates")
      .Type("RATE")
      .Default("100GB/s");
  AddParsed(app, "--checksum-rate", &flags->checksum_rate, ParseRate, "Bytes that the CPU hashes")
      .Type("RATE")
      .Default("20GB/s");
  AddParsed(
      app, "--tokens", &flags->tokens,
      [](const std::string& text) { return ParseInteger(text, 1, kMostTokens); },
      "Of a step; micro-batches follow: the largest that fits, or those of --batch")
      .Type("N");
  AddRecipeFlags(app, &flags->recipe);
}

StepRates Question::rates() const {
  StepRates rates;
  rates.compute.flops_16bit = hardware.gpu.flops * hardware.flops_share;
  rates.compute.flops_fp32 = hardware.gpu.flops_fp32 * hardware.flops_share;
  rates.compute.bytes_per_second = hardware.gpu.memory_bytes_per_second;
  rates.update_bytes_per_second = hardware.update_rate;
  return rates;
}

absl::StatusOr<Question> ReadQuestion(QuestionFlags flags) {
  if (flags.model.empty()) return UsageError("--model is needed: a preset, or a config.json");
  Question question;
  question.preset = FindModelPreset(flags.model);
  SPILLWAY_ASSIGN_OR_RETURN(question.config, question.preset != nullptr ? ConfigOf(*question.preset)
                                                                        : ReadConfig(flags.model));
  question.title = question.preset != nullptr ? std::string(question.preset->title) : flags.model;
  SPILLWAY_ASSIGN_OR_RETURN(question.hardware, ReadHardware(flags));
  SPILLWAY_ASSIGN_OR_RETURN(question.placement, PlacementOf(flags.recipe.engine.placement));

  trainer::ModelOptions& given = flags.recipe.trainer.model;
  const bool has_batch = given.micro_batch > 0;
  if (given.sequence == 0)
    given.sequence = std::min<int64_t>(2048, question.config.max_position_embeddings);
  if (!has_batch) given.micro_batch = 1;
  SPILLWAY_RETURN_IF_ERROR(FinishRecipeFlags(&flags.recipe));
  question.options = given;
  question.options.training = true;
  question.options.accumulation_order =
      flags.recipe.accumulation_order.value_or(trainer::AccumulationOrder::kLayer);
  if (question.options.sequence > question.config.max_position_embeddings) {
    return UsageError(absl::StrFormat("--seq %d is more than the model's %d positions",
                                      question.options.sequence,
                                      question.config.max_position_embeddings));
  }
  double parameters = 0;  // exact up to 2^53, and never too large
  for (const trainer::ParameterShape& shape : trainer::ListParameters(question.config)) {
    double elements = 1;
    for (const int64_t size : shape.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  if (parameters > kMostParameters) {
    return UsageError(
        absl::StrFormat("the model has %.3g parameters; at most 10^15 are simulated", parameters));
  }
  question.num_parameters = static_cast<uint64_t>(parameters);
  const trainer::Description model = trainer::Describe(question.config);
  const double tiles =
      parameters / static_cast<double>(trainer::TilesOf(model, question.options).values) +
      static_cast<double>(model.parameters.size());
  if (tiles > kMostTiles) {
    return UsageError(absl::StrFormat(
        "the weights have %.3g tiles; at most %.3g are simulated, which are some %.3g parameters",
        tiles, kMostTiles, kMostTiles * static_cast<double>(1 << 24)));
  }
  if (tiles > kManyTiles)
    absl::FPrintF(stderr, "note: %.3g tiles of weights take minutes and gigabytes\n", tiles);
  SPILLWAY_RETURN_IF_ERROR(CheckPatterns(given.groups, question.config));
  question.options.tiles =
      trainer::TilesWithin(question.config, question.options, question.placement,
                           question.device_bytes(), question.pinned_bytes());
  if (flags.tokens) SPILLWAY_RETURN_IF_ERROR(DivideTokens(*flags.tokens, has_batch, &question));
  question.tokens =
      question.options.sequence * question.options.micro_batch * question.options.accumulate;
  return question;
}

}  // namespace spillway::command
