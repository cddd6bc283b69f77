// SPDX-License-Identifier: Apache-2.0
//
// The answer of `spillway plan` as a page to be sent to others: one file that loads nothing, has no
// script, and shows the command that made it. It computes nothing: the figures are those of the
// answer, in the words of the text (answer_words.h).

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_PLAN_PAGE_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_PLAN_PAGE_H_

#include <string>
#include <vector>

#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/techniques.h"

namespace spillway::command {

struct PlanPage {
  const Question& question;
  const PlanWishes& wishes;
  const PlanAnswer& answer;
  const std::vector<WithoutSpillway>& without;
  const std::vector<TechniqueRow>& techniques;
  const StepCost* drawn = nullptr;  // the step with its timeline; null: none is drawn
  std::string command;              // that made the page, as a shell reads it
  std::string version;              // of Spillway
};

std::string ToHtml(const PlanPage& page);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_PLAN_PAGE_H_
