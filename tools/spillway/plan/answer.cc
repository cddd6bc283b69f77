// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "tools/spillway/plan/this_machine.h"
#include "tools/spillway/step/timed_step.h"

namespace spillway::command {

absl::StatusOr<Answer> AnswerBySimulation(const Question& question, const Execution& execution) {
  Answer answer;
  SPILLWAY_ASSIGN_OR_RETURN(answer.fit, FitOf(question));
  if (!answer.fit.fits()) return answer;
  SPILLWAY_ASSIGN_OR_RETURN(const TimedStep step, TimeStep(question.config(), question.options,
                                                           question.placement, question.rates()));
  SPILLWAY_ASSIGN_OR_RETURN(answer.cost, CostOf(question, answer.fit, step, execution));
  return answer;
}

absl::StatusOr<PlanAnswer> AnswerAtOnce(const Question& question) {
  PlanAnswer answer;
  SPILLWAY_ASSIGN_OR_RETURN(answer.fit, FitOf(question));
  SPILLWAY_ASSIGN_OR_RETURN(answer.advice, AdviseFit(question, answer.fit));
  SPILLWAY_ASSIGN_OR_RETURN(answer.largest, LargestThatFits(question));
  if (!answer.fit.fits() || !question.model.config) return answer;
  SPILLWAY_ASSIGN_OR_RETURN(const QuickStep step, QuickStep::Make(question, answer.fit));
  SPILLWAY_ASSIGN_OR_RETURN(answer.more,
                            PriceOneMoreOfEach(question, answer.fit, step, &answer.cost.emplace()));
  return answer;
}

std::string TrainCommandOf(const Question& question, const Fit& fit) {
  // A GPU's scratch is beside the engine's budget, and so is that of the processors.
  const bool on_gpu = question.hardware.gpu.name != kThisMachine;
  const uint64_t device_bytes = question.device_bytes() - fit.workspace_bytes;
  const trainer::ModelOptions& options = question.options;
  std::vector<std::string> folders;
  for (int64_t drive = 0; drive < question.hardware.drives.count && drive < 8; ++drive)
    folders.push_back(absl::StrCat("nvme", drive, "/run"));
  std::vector<std::string> words = {
      absl::StrCat("spillway train --model ",
                   question.model.folder.empty() ? "MODEL" : question.model.folder,
                   " --data DATA --store ", absl::StrJoin(folders, ",")),
      absl::StrFormat("%s--device-bytes %dMiB --pinned-bytes %dMiB", on_gpu ? "--device cuda " : "",
                      device_bytes / kMiB, question.pinned_bytes() / kMiB),
      absl::StrFormat("--seq %d --batch %d --accumulate %d", options.sequence, options.micro_batch,
                      options.accumulate)};
  std::string recipe = absl::StrCat("--precision ", base::View(Name(options.precision)));
  if (options.accumulate > 1) {
    absl::StrAppend(&recipe, " --accumulation-order ",
                    options.by_layer() ? "layer" : "micro-batch");
  }
  if (!options.checkpoint_activations) absl::StrAppend(&recipe, " --checkpoint-activations off");
  if (question.rule != RuleKind::kAdamW)
    absl::StrAppend(&recipe, " --optimizer ", base::View(Name(question.rule)));
  if (options.state_format != StateFormat::kF32)
    absl::StrAppend(&recipe, " --state-format ", base::View(Name(options.state_format)));
  if (options.gradient_dtype == DType::kF32 && options.precision != trainer::Precision::kFp32)
    absl::StrAppend(&recipe, " --grad-dtype fp32");
  constexpr const char* kPlaceWords[kNumRoles] = {"parameters", "gradients", "master-weights",
                                                  "moments", "activations"};
  std::vector<std::string> places;
  for (size_t role = 0; role < kNumRoles; ++role) {
    if (question.placement[role])
      places.push_back(
          absl::StrCat(kPlaceWords[role], "=", base::View(Name(*question.placement[role]))));
  }
  if (!places.empty()) absl::StrAppend(&recipe, " --place ", absl::StrJoin(places, ","));
  if (!options.groups.frozen.empty())
    absl::StrAppend(&recipe, " --freeze '", absl::StrJoin(options.groups.frozen, ","), "'");
  if (!question.keeps_commits) absl::StrAppend(&recipe, " --durability none");
  words.push_back(recipe);
  return absl::StrJoin(words, " \\\n    ");
}

std::vector<std::string> WhatTrainsToday(const Question& question) {
  std::vector<std::string> notes;
  const AskedModel& model = question.model;
  if (!model.config) {
    notes.push_back(absl::StrCat("bytes alone: Spillway's trainer does not know this model (",
                                 model.why_counted, "); spillway.torch trains any model"));
    return notes;
  }
  if (model.preset != nullptr && !model.preset->differs.empty()) {
    notes.push_back(absl::StrCat(base::View(model.preset->differs),
                                 "; the trainer computes the nearest type, ",
                                 model.config->model_type, ", in these shapes"));
  } else {
    notes.push_back(
        absl::StrCat("the trainer computes this model as model type ", model.config->model_type));
  }
  if (model.config->dropout > 0) {
    notes.push_back(absl::StrFormat("its %s of %g is not computed: train needs --dropout 0",
                                    model.config->dropout_key, model.config->dropout));
  }
  notes.push_back(
      question.hardware.gpu.name == kThisMachine
          ? "here the processors compute, and what is called the GPU's memory is an eighth of this "
            "machine's"
          : "no GPU has run the trainer's --device cuda yet, and spillway.torch has run on one: "
            "seconds "
            "are what this GPU's rates allow");
  if (question.hardware.gpu.dram_bytes > 0)
    notes.push_back("all GPUs count as one; spillway.torch divides a model among ranks");
  return notes;
}

}  // namespace spillway::command
