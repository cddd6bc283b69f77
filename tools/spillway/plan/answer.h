// SPDX-License-Identifier: Apache-2.0
//
// What `spillway plan` and `spillway simulate` answer, as data, and how it is shown. Each figure is
// computed in one place: fit.h, step_cost.h, fit_advice.h and outlook.h.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/fit_advice.h"
#include "tools/spillway/plan/outlook.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/step_cost.h"

namespace spillway::command {

struct Answer {
  Fit fit;
  std::optional<StepCost> cost;  // if it fits, of a model whose computation is known
};

// What a plan is asked beside the question.
struct PlanWishes {
  double train_tokens = 1e9;
  double endurance_bytes = 0;  // of a drive; 0: not given
};

struct PlanAnswer : Answer {
  FitAdvice advice;  // if it does not fit
  LargestModel largest;
  std::vector<MoreOfOne> more;  // if there is a cost
};

// Answers with the model's own tiles, or at once with larger ones.
absl::StatusOr<Answer> AnswerBySimulation(const Question& question, const Execution& execution);
absl::StatusOr<PlanAnswer> AnswerAtOnce(const Question& question);

// The `train` command of the recipe, with the budgets of the machine.
std::string TrainCommandOf(const Question& question, const Fit& fit);

// What Spillway's trainer computes today of the model and on the device; a sentence each.
std::vector<std::string> WhatTrainsToday(const Question& question);

std::string ToText(const Question& question, const Answer& answer);
std::string ToText(const Question& question, const PlanWishes& wishes, const PlanAnswer& answer);
nlohmann::ordered_json ToJson(const Question& question, const Answer& answer);
nlohmann::ordered_json ToJson(const Question& question, const PlanWishes& wishes,
                              const PlanAnswer& answer);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_
