// SPDX-License-Identifier: Apache-2.0
//
// `spillway bench train`: whole training steps of models with random weights.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/hf/config.h"
#include "tools/spillway/bench/bench_session.h"
#include "tools/spillway/bench/train/bench.h"
#include "tools/spillway/bench/train/report.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/plan/model_presets.h"
#include "tools/spillway/train/precision_flags.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Measure training: tokens a second of models with random weights, all on the device, from\n"
    "pinned memory and from a drive.\n"
    "\n"
    "Examples:\n"
    "  spillway bench train --device cuda\n"
    "  spillway bench train /nvme0 --device cuda --model 7B --place pinned,nvme --json\n"
    "  spillway bench train /nvme0 --model smollm2 --seq 256 --device-bytes 64MiB "
    "--pinned-bytes 512MiB\n"
    "\n"
    "A row has the seconds of a step and of its parts: forward and backward (walk), the update,\n"
    "computing and transfers alone, waiting for bytes, and taking leases. Below it are the rates\n"
    "of each kind of operation, beside those of a square product and of a copy alone. A model\n"
    "for which the device, memory or DIR has no room is skipped, and the row says why. What was\n"
    "written to DIR is removed again, also when interrupted.\n";

constexpr int64_t kMostThreads = 512;

struct Flags {
  bench_train::BenchOptions bench;
  std::vector<std::string> models = {"1.1B", "3.2B", "7B"};
  std::vector<std::string> places = {"device", "pinned", "nvme"};
  std::vector<std::string> fp32;
  bool json = false;
};

absl::StatusOr<bench_train::BenchModel> ReadModel(const std::string& name) {
  std::error_code ignored;
  const ModelPreset* const preset = FindModelPreset(name);
  if (preset == nullptr) {
    if (!std::filesystem::is_directory(name, ignored)) {
      return UsageError(absl::StrCat("--model ", name,
                                     ": it is neither a folder nor a model by name, such as 1.1B, "
                                     "3.2B or 7B"));
    }
    SPILLWAY_ASSIGN_OR_RETURN(hf::ModelConfig config, hf::ReadModelConfig(name));
    return bench_train::BenchModel{std::filesystem::path(name + "/").parent_path().filename(),
                                   std::move(config)};
  }
  SPILLWAY_ASSIGN_OR_RETURN(hf::ModelConfig config, ConfigOf(*preset));
  return bench_train::BenchModel{name, std::move(config)};
}

absl::Status Finish(Flags* flags) {
  bench_train::BenchOptions& bench = flags->bench;
  SPILLWAY_RETURN_IF_ERROR(CheckPrecisionFlags(bench.recipe.precision, flags->fp32));
  bench.recipe.groups.fp32 = flags->fp32;
  bench.recipe.gradient_dtype = trainer::ElementType(bench.recipe.precision);
  for (const std::string& name : flags->places) {
    size_t place = 0;
    while (place < bench_train::kNumPlaces &&
           name != bench_train::NameOf(static_cast<bench_train::Where>(place)))
      ++place;
    if (place == bench_train::kNumPlaces)
      return UsageError(absl::StrCat("--place '", name, "' is not one of device|pinned|nvme"));
    bench.places.push_back(static_cast<bench_train::Where>(place));
  }
  for (const std::string& name : flags->models) {
    SPILLWAY_ASSIGN_OR_RETURN(bench_train::BenchModel model, ReadModel(name));
    if (bench.recipe.sequence > model.config.max_position_embeddings) {
      return UsageError(absl::StrFormat("--seq %d is more than the %d positions of %s",
                                        bench.recipe.sequence, model.config.max_position_embeddings,
                                        model.name));
    }
    bench.models.push_back(std::move(model));
  }
  if (bench.models.empty() || bench.places.empty())
    return UsageError("--model and --place need a name each");
  return CheckEngineFlags(bench.engine);
}

absl::Status RunBenchTrain(Flags flags) {
  SPILLWAY_RETURN_IF_ERROR(Finish(&flags));
  SPILLWAY_ASSIGN_OR_RETURN(const bench_train::BenchReport report,
                            RunSession(flags.bench, bench_train::RunBench));
  PrintReport(report, flags.json);
  return absl::OkStatus();
}

}  // namespace

void AddBenchTrainCommand(CLI::App* bench, Run* run) {
  CLI::App* const train = AddCommand(bench, "train", kDescription);
  const auto flags = std::make_shared<Flags>();
  trainer::ModelOptions& recipe = flags->bench.recipe;
  EngineFlags& engine = flags->bench.engine;
  recipe.precision = trainer::Precision::kBf16;
  recipe.sequence = 2048;
  engine.threads = std::max(1U, std::thread::hardware_concurrency());
  AddText(train, "dir", &flags->bench.folder,
          "A folder on the drive for state on NVMe; none: that place is skipped");
  AddList(train, "--model", &flags->models,
          "Models by name, as spillway plan has them, or folders with a config.json: M[,M]")
      .Default("1.1B,3.2B,7B");
  AddList(train, "--place", &flags->places, "Where everything rests: device, pinned, nvme")
      .Default("device,pinned,nvme");
  AddPrecisionFlags(train, &recipe.precision, &flags->fp32, "Of weights and activations");
  AddChoice<StateFormat>(train, "--state-format", &recipe.state_format,
                         {{"fp32", StateFormat::kF32},
                          {"bf16", StateFormat::kBf16},
                          {"8bit", StateFormat::k8Bit},
                          {"compact", StateFormat::kCompact}},
                         "Of AdamW's state");
  AddInteger(train, "--seq", &recipe.sequence, 1, int64_t{1} << 20, "Tokens of a window");
  AddInteger(train, "--batch", &recipe.micro_batch, 1, int64_t{1} << 20,
             "Windows of a micro-batch");
  AddInteger(train, "--accumulate", &recipe.accumulate, 1, int64_t{1} << 20,
             "Micro-batches of a step");
  AddInteger(train, "--steps", &flags->bench.steps, 1, 10000, "Steps that are timed");
  AddSize(train, "--device-bytes", &engine.device_bytes,
          "Budget of the device tier (default: an eighth of the state, or all of it)");
  AddSize(train, "--pinned-bytes", &engine.pinned_bytes,
          "Budget of pinned memory (default: a quarter of the state on NVMe, else unlimited)");
  AddDevice(train, "--device", &engine.device, "Where to compute");
  AddText(train, "--cublaslt", &engine.cublaslt, "As for train").Type("FILE");
  AddInteger(train, "--threads", &engine.threads, 1, kMostThreads, "Threads that compute");
  AddFlag(train, "--json", &flags->json, "JSON on stdout");
  WhenChosen(train, [flags, run] { *run = [flags] { return RunBenchTrain(*flags); }; });
}

}  // namespace spillway::command
