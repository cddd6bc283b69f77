// SPDX-License-Identifier: Apache-2.0
//
// Declares and checks the flags of inference, and loads a model with them.

#include "tools/spillway/train/inference.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/hf/model_types.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/weight_progress.h"
#include "tools/spillway/train/computing.h"
#include "tools/spillway/train/optimizer_flags.h"
#include "tools/spillway/train/precision_flags.h"
#include "tools/trainer/weight_source.h"

namespace spillway::command {

void AddInferenceFlags(CLI::App* app, InferenceFlags* flags) {
  AddText(app, "--model", &flags->model, "Hugging Face folder of the model");
  AddInteger(app, "--seq", &flags->sequence, 1, int64_t{1} << 20,
             "Tokens of a window (default: 256, or what the model was made for if that is less)")
      .Default("");
  AddPrecisionFlags(app, &flags->precision, &flags->fp32, "Of weights and activations");
  AddEngineFlags(
      app, &flags->engine,
      "Folders for what memory does not hold, removed at the end: DIR or DIR,DIR. They are not a "
      "training run's store: what that has is exported first (spillway snapshot export)");
}

absl::Status CheckSequence(int64_t sequence, const hf::ModelConfig& config) {
  if (sequence <= config.max_position_embeddings) return absl::OkStatus();
  const std::string key = hf::ModelTypeOf(config.model_type)["keys"]["positions"];
  return UsageError(absl::StrFormat("--seq %d is more than the model's %s, %d (config.json)",
                                    sequence, key, config.max_position_embeddings));
}

absl::StatusOr<int64_t> SequenceFor(int64_t given, const hf::ModelConfig& config) {
  constexpr int64_t kDefault = 256;
  if (given == 0) return std::min(kDefault, config.max_position_embeddings);
  SPILLWAY_RETURN_IF_ERROR(CheckSequence(given, config));
  return given;
}

absl::Status CheckInferenceFlags(const InferenceFlags& flags) {
  if (flags.model.empty()) return UsageError("--model is needed; see --help");
  SPILLWAY_RETURN_IF_ERROR(CheckPrecisionFlags(flags.precision, flags.fp32));
  return CheckEngineFlags(flags.engine);
}

absl::StatusOr<InferenceModel> LoadForInference(const InferenceFlags& flags,
                                                const hf::ModelConfig& config,
                                                const std::atomic<bool>& stop) {
  trainer::ModelOptions options;
  options.precision = flags.precision;
  options.groups.fp32 = flags.fp32;
  options.training = false;
  SPILLWAY_RETURN_IF_ERROR(CheckMatches("--fp32", flags.fp32, config));
  SPILLWAY_ASSIGN_OR_RETURN(options.sequence, SequenceFor(flags.sequence, config));
  SPILLWAY_ASSIGN_OR_RETURN(const trainer::WeightSource source,
                            trainer::OpenFolderWeights(flags.model, config));
  SPILLWAY_ASSIGN_OR_RETURN(options.tiles, TilesFor(flags.engine, config, options));
  const StoreNeed need = {.state = trainer::ModelStateBytes(config, options)};
  SPILLWAY_RETURN_IF_ERROR(CheckRoom(flags.engine, config, options, need));

  EngineFlags engine_flags = flags.engine;
  SPILLWAY_ASSIGN_OR_RETURN(auto gpu,
                            OpenGpuFor(engine_flags, trainer::ElementType(options.precision)));
  SPILLWAY_RETURN_IF_ERROR(PrepareGpu(gpu.get(), config, options, &engine_flags));
  TellWhatComputes(gpu.get());
  InferenceModel loaded;
  SPILLWAY_ASSIGN_OR_RETURN(loaded.engine,
                            OpenEngine(engine_flags, OpenMode::kScratch, need, stop));
  loaded.pool = std::make_unique<ThreadPool>(static_cast<int>(flags.engine.threads));
  SPILLWAY_ASSIGN_OR_RETURN(auto compute,
                            BeginComputing(std::move(gpu), loaded.engine.get(), loaded.pool.get()));
  WeightProgress progress("loaded", config);
  auto model = trainer::Model::Create(loaded.engine.get(), std::move(compute), config, options,
                                      progress.Watch(source));
  if (absl::IsInvalidArgument(model.status())) {  // a weight is not finite or does not fit the type
    return absl::InvalidArgumentError(
        absl::StrCat("--model ", flags.model, ": ", std::string(model.status().message())));
  }
  SPILLWAY_RETURN_IF_ERROR(model.status());
  loaded.model = *std::move(model);
  return loaded;
}

}  // namespace spillway::command
