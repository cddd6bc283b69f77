// SPDX-License-Identifier: Apache-2.0
//
// Answers as text: what one wants to know first comes first, and figures stand below one another.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/view.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/answer_words.h"

namespace spillway::command {
namespace {

using base::FormatBytes;
using base::View;
using plan::Transfer;

std::string Bar(double share) {
  std::string bar;
  for (int i = 0; i < std::lround(40 * share); ++i) absl::StrAppend(&bar, "█");
  return bar;
}

// What is asked: model, recipe, step and machine.
std::string AskedText(const Question& question) {
  std::string text = absl::StrFormat("model     %s: %s parameters\n", question.model.title,
                                     Short(static_cast<double>(question.num_parameters)));
  absl::StrAppend(&text, "recipe    ", RecipeWords(question), "\n");
  if (question.model.config) absl::StrAppend(&text, "step      ", StepWords(question), "\n");
  absl::StrAppend(&text, "machine   ", MachineWords(question.hardware), "\n");
  return text;
}

std::string PartsText(const Answer& answer, size_t tier) {
  return absl::StrJoin(PartsOf(answer, tier), ", ", [](std::string* out, const HeldPart& part) {
    absl::StrAppend(out, View(part.title), " ", FormatBytes(part.bytes));
  });
}

std::string BytesText(const Answer& answer) {
  std::string text =
      absl::StrFormat("\n%-10s%12s%12s   holds at its fullest\n", "", "needs", "has");
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = answer.fit.tiers[tier];
    absl::StrAppendFormat(
        &text, "%-10s%12s%12s   %s%s\n", std::string(TierTitle(tier)), FormatBytes(need.needed),
        need.room == 0 ? "any" : FormatBytes(need.room),
        need.fits() ? "" : absl::StrCat("lacks ", FormatBytes(need.missing()), ": "),
        PartsText(answer, tier));
  }
  return text;
}

std::string SecondsText(const Question& question, const StepCost& cost) {
  std::string text = absl::StrFormat("\n%-10s%12s%12s\n", "a step", "seconds", "share");
  const auto line = [&](const char* phase, double seconds) {
    const double share = seconds / cost.seconds;
    absl::StrAppendFormat(&text, "%-10s%12.4g%11.0f%%   %s\n", phase, seconds, 100 * share,
                          Bar(share));
  };
  line("forward", cost.forward_seconds);
  line("backward", cost.backward_seconds);
  line("update", cost.update_seconds);
  line("waiting", cost.waiting_seconds);
  absl::StrAppendFormat(&text, "%-10s%12.4g\n", "all", cost.seconds);
  absl::StrAppendFormat(&text, "\nWhat binds: %s.", std::string(WhatBinds(cost)));
  if (cost.waiting_seconds > 0.01 * cost.seconds && cost.io_seconds() <= cost.walk_seconds())
    absl::StrAppend(&text, " What it waits for most: ", View(SlowestTransfer(cost)), ".");
  absl::StrAppendFormat(
      &text,
      "\nNo schedule within this memory takes less than %.4g s.\n"
      "NVMe moves %s in and %s out in %.4g s, the link to the GPU %s and %s in %.4g s.\n",
      cost.bound_seconds, FormatBytes(cost.bytes[Transfer::kRead]),
      FormatBytes(cost.bytes[Transfer::kWrite]),
      std::max({cost.drive_seconds, cost.link_seconds[0], cost.link_seconds[1]}),
      FormatBytes(cost.bytes[Transfer::kCopyIn]), FormatBytes(cost.bytes[Transfer::kCopyOut]),
      std::max(cost.link_seconds[2], cost.link_seconds[3]));
  absl::StrAppendFormat(&text, "%s tokens/s, %.1f%% of the GPU's peak (model FLOP utilisation).\n",
                        Short(static_cast<double>(question.tokens) / cost.seconds),
                        100 * ModelFlopUtilisation(question, cost));
  if (!cost.is_simulated) {
    absl::StrAppend(&text,
                    "The step has too many tiles to be executed at once: seconds and bytes are "
                    "those of the bound.\n");
  }
  if (!cost.not_planned.empty())
    absl::StrAppend(&text, "The step is served on demand: ", cost.not_planned, "\n");
  return text;
}

std::string OutlookText(const Question& question, const PlanWishes& wishes,
                        const PlanAnswer& answer) {
  const StepCost& cost = *answer.cost;
  std::string text = "\nwith                          a step\n";
  for (const MoreOfOne& more : answer.more) {
    const double factor = cost.seconds / more.seconds;
    absl::StrAppendFormat(
        &text, "%-22s%12.4g s   %s\n", more.words, more.seconds,
        factor < 1.005 ? "no faster" : absl::StrFormat("%.2f times as fast", factor));
  }
  const int64_t hidden = TokensThatHideIo(question, cost);
  if (hidden > question.tokens) {
    absl::StrAppendFormat(
        &text, "\n%s tokens a step hide the transfers: waiting is then less than a tenth.\n",
        Commas(hidden));
  } else {
    absl::StrAppend(&text,
                    "\nThe transfers are hidden: waiting is less than a tenth of the step.\n");
  }
  absl::StrAppendFormat(&text, "%s tokens take %s", Short(wishes.train_tokens),
                        DaysWords(DaysFor(wishes.train_tokens, question, cost)));
  const DriveWear wear = WearOf(wishes.endurance_bytes, question, cost);
  if (wear.written_a_day > 0) {
    absl::StrAppendFormat(&text, "; each drive is written %s a day",
                          BytesWords(wear.written_a_day));
    if (wear.days > 0) absl::StrAppend(&text, " and lasts ", DaysWords(wear.days));
  }
  return absl::StrCat(text, ".\n");
}

std::string LargestText(const LargestModel& largest) {
  const std::string parameters = Short(static_cast<double>(largest.parameters));
  if (largest.parameters == 0) {
    return absl::StrCat("Not even one layer of this width fits: ", View(largest.full_first),
                        " is full first.\n");
  }
  const std::string what =
      largest.layers > 0
          ? absl::StrFormat("%s of this width, %s parameters",
                            base::FormatCount(uint64_t(largest.layers), "layer"), parameters)
          : absl::StrCat(parameters, " parameters");
  if (!largest.is_limited)
    return absl::StrCat("Nothing limits the model's size: the drives have no size (", what, ").\n");
  return absl::StrCat("The largest model that fits: ", what, "; ", View(largest.full_first),
                      " is full first.\n");
}

std::string AdviceText(const FitAdvice& advice) {
  const auto list = [](const std::vector<FitChange>& changes) {
    std::string text;
    for (const FitChange& change : changes)
      absl::StrAppendFormat(&text, "  %-32s%s\n", change.flags, change.costs);
    return text;
  };
  std::string text;
  if (!advice.alone.empty())
    absl::StrAppend(&text, "\nEach of these alone makes it fit:\n", list(advice.alone));
  if (!advice.together.empty())
    absl::StrAppend(&text, "\nThese together make it fit:\n", list(advice.together));
  return text.empty() ? "\nNothing that could be changed here makes it fit.\n" : text;
}

}  // namespace

std::string ToText(const Question& question, const Answer& answer) {
  std::string text = absl::StrCat(AskedText(question), BytesText(answer));
  if (!answer.cost)
    return absl::StrCat(text, "\nIt does not fit. spillway plan says what would make it fit.\n");
  absl::StrAppend(&text, SecondsText(question, *answer.cost));
  absl::StrAppendFormat(
      &text, "%s tiles; %s\n", Commas(int64_t(answer.cost->num_tiles)),
      answer.cost->repeats
          ? absl::StrFormat("step %d repeats the one before.", answer.cost->steps)
          : absl::StrFormat("step %d of %d.", answer.cost->steps, answer.cost->steps));
  return text;
}

std::string ToText(const Question& question, const PlanWishes& wishes, const PlanAnswer& answer) {
  std::string text =
      absl::StrCat(VerdictWords(question, answer), "\n\n", AskedText(question), BytesText(answer));
  if (answer.cost) absl::StrAppend(&text, SecondsText(question, *answer.cost));
  if (!answer.fit.fits()) absl::StrAppend(&text, AdviceText(answer.advice));
  absl::StrAppend(&text, answer.cost ? OutlookText(question, wishes, answer) : "\n",
                  LargestText(answer.largest));
  if (answer.fit.fits() && question.model.config)
    absl::StrAppend(&text, "\n", TrainCommandOf(question, answer.fit), "\n");
  for (const std::string& note : WhatTrainsToday(question))
    absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

}  // namespace spillway::command
