// SPDX-License-Identifier: Apache-2.0
//
// `spillway eval`: computes the mean loss of a model on the first validation windows, with the same
// engine and budgets as training. If a store is given, it is scratch: it is created here and
// removed at the end.

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/progress.h"
#include "tools/spillway/train/inference.h"
#include "tools/spillway/train/train_report.h"
#include "tools/trainer/evaluation.h"
#include "tools/trainer/token_data.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Mean loss of a model on the first windows of a validation text.\n"
    "\n"
    "Examples:\n"
    "  spillway eval --model smollm2 --data kjv --seq 256 --batches 8\n"
    "  spillway eval --model smollm2 --data kjv --store scratch --device-bytes 48MiB \\\n"
    "      --pinned-bytes 96MiB --json\n";

struct EvalFlags {
  std::string data;
  int64_t num_windows = 8;
  bool json = false;
  InferenceFlags inference;
};

absl::Status RunEval(const EvalFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckInferenceFlags(flags.inference));
  if (flags.data.empty()) return UsageError("--data is needed; see spillway eval --help");
  SPILLWAY_ASSIGN_OR_RETURN(const hf::ModelConfig config,
                            hf::ReadModelConfig(flags.inference.model));
  SPILLWAY_ASSIGN_OR_RETURN(const int64_t sequence, SequenceFor(flags.inference.sequence, config));
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<trainer::TokenData> data,
      trainer::TokenData::Open(flags.data, "valid", config.vocab_size, sequence));
  const std::atomic<bool>& stop = CatchInterrupts();
  SPILLWAY_ASSIGN_OR_RETURN(const InferenceModel loaded,
                            LoadForInference(flags.inference, config, stop));
  Progress progress("evaluated");
  SPILLWAY_ASSIGN_OR_RETURN(
      const trainer::Evaluation evaluation,
      trainer::Evaluate(
          loaded.model.get(), *data, sequence, flags.num_windows, &stop,
          [&](int64_t done, int64_t total) { progress.ShowCount(done, total, "windows"); }));
  progress.End();
  if (evaluation.windows < flags.num_windows) {
    absl::FPrintF(stderr, "note: the text has %s of %d tokens; all were taken\n",
                  base::FormatCount(evaluation.windows, "window"), sequence);
  }
  if (!flags.json) {
    absl::PrintF("loss %.6f over %s of %d tokens, %.1f s\n", evaluation.loss,
                 base::FormatCount(evaluation.windows, "window"), sequence, evaluation.seconds);
    return absl::OkStatus();
  }
  nlohmann::ordered_json json = {{"v", 1},
                                 {"loss", evaluation.loss},
                                 {"windows", evaluation.windows},
                                 {"seconds", evaluation.seconds}};
  AddEngineFigures(loaded.engine->Stats(), loaded.model->workspace_bytes(), &json);
  absl::PrintF("%s\n", JsonText(json));
  return absl::OkStatus();
}

}  // namespace

void AddEvalCommand(CLI::App* app, Run* run) {
  CLI::App* const eval = AddCommand(app, "eval", kDescription);
  const auto flags = std::make_shared<EvalFlags>();
  AddInferenceFlags(eval, &flags->inference);
  AddText(eval, "--data", &flags->data, "Folder of tokens with valid.npy");
  AddInteger(eval, "--batches", &flags->num_windows, 1, int64_t{1} << 40,
             "Windows to take, in order");
  AddFlag(eval, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(eval, [flags, run] { *run = [flags] { return RunEval(*flags); }; });
}

}  // namespace spillway::command
