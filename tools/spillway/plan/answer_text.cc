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

namespace spillway::command {
namespace {

using base::FormatBytes;
using base::View;
using plan::Transfer;

constexpr std::array<const char*, kNumTiers> kTierTitles = {"GPU", "memory", "NVMe"};
constexpr std::array<const char*, kNumRoles> kRoleTitles = {
    "weights", "gradients", "master weights", "moments", "activations"};

// "65,536".
std::string Commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

// "1.008 T", "6.74 B".
std::string Short(double count) {
  for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}})
    if (count >= unit) return absl::StrFormat("%.4g %s", count / unit, name);
  return absl::StrFormat("%.4g", count);
}

std::string Bytes(double bytes) {
  return FormatBytes(static_cast<uint64_t>(std::min(bytes, 1e19)));
}

std::string Days(double days) {
  if (days >= 2 * 365) return absl::StrFormat("%.4g years", days / 365);
  if (days >= 2) return absl::StrFormat("%.1f days", days);
  if (days * 24 >= 2) return absl::StrFormat("%.1f hours", days * 24);
  return absl::StrFormat("%.1f minutes", days * 24 * 60);
}

std::string Bar(double share) {
  std::string bar;
  for (int i = 0; i < std::lround(40 * share); ++i) absl::StrAppend(&bar, "█");
  return bar;
}

std::string Machine(const Hardware& hardware) {
  std::string drives = absl::StrFormat("%s at %s/s read, %s/s written",
                                       base::FormatCount(uint64_t(hardware.drives.count), "drive"),
                                       Bytes(hardware.drives.read), Bytes(hardware.drives.write));
  if (hardware.drives.size_bytes > 0)
    absl::StrAppend(&drives, ", ", FormatBytes(hardware.drives.size_bytes), " each");
  return absl::StrFormat("%s, %s of memory, %s", std::string(hardware.gpu.title),
                         FormatBytes(hardware.dram_bytes), drives);
}

std::string Recipe(const Question& question) {
  const trainer::ModelOptions& options = question.options;
  return absl::StrCat(View(Name(options.precision)), ", ", View(Name(question.rule)),
                      " with state in ", View(Name(options.state_format)),
                      options.checkpoint_activations ? ", activations checkpointed" : "",
                      options.groups.frozen.empty() ? "" : ", parts frozen");
}

// What is asked: model, recipe, step and machine.
std::string AskedText(const Question& question) {
  std::string text = absl::StrFormat("model     %s: %s parameters\n", question.model.title,
                                     Short(static_cast<double>(question.num_parameters)));
  absl::StrAppend(&text, "recipe    ", Recipe(question), "\n");
  if (question.model.config) {
    const trainer::ModelOptions& options = question.options;
    absl::StrAppendFormat(
        &text, "step      %s tokens: %s of %s of %s tokens\n", Commas(question.tokens),
        absl::StrCat(options.accumulate,
                     options.accumulate == 1 ? " micro-batch" : " micro-batches"),
        base::FormatCount(uint64_t(options.micro_batch), "window"), Commas(options.sequence));
  }
  absl::StrAppend(&text, "machine   ", Machine(question.hardware), "\n");
  return text;
}

// What a tier holds, the largest part first.
std::string Parts(const Answer& answer, size_t tier) {
  const bool moves = answer.cost && answer.cost->is_simulated && Tier(tier) != Tier::kNvme;
  const RoleBytes& roles = moves ? answer.cost->fullest[tier] : answer.fit.tiers[tier].roles;
  std::vector<std::pair<uint64_t, std::string>> parts;
  for (size_t role = 0; role < kNumRoles; ++role)
    parts.emplace_back(roles[role], kRoleTitles[role]);
  if (Tier(tier) == Tier::kDevice) parts.emplace_back(answer.fit.workspace_bytes, "workspace");
  if (Tier(tier) == Tier::kNvme) parts.emplace_back(answer.fit.commit_bytes, "a commit's copy");
  std::erase_if(parts, [](const auto& part) { return part.first == 0; });
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return absl::StrJoin(parts, ", ", [](std::string* out, const auto& part) {
    absl::StrAppend(out, part.second, " ", FormatBytes(part.first));
  });
}

std::string BytesText(const Answer& answer) {
  std::string text =
      absl::StrFormat("\n%-10s%12s%12s   holds at its fullest\n", "", "needs", "has");
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = answer.fit.tiers[tier];
    absl::StrAppendFormat(
        &text, "%-10s%12s%12s   %s%s\n", kTierTitles[tier], FormatBytes(need.needed),
        need.room == 0 ? "any" : FormatBytes(need.room),
        need.fits() ? "" : absl::StrCat("lacks ", FormatBytes(need.missing()), ": "),
        Parts(answer, tier));
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
                        Days(DaysFor(wishes.train_tokens, question, cost)));
  const DriveWear wear = WearOf(wishes.endurance_bytes, question, cost);
  if (wear.written_a_day > 0) {
    absl::StrAppendFormat(&text, "; each drive is written %s a day", Bytes(wear.written_a_day));
    if (wear.days > 0) absl::StrAppend(&text, " and lasts ", Days(wear.days));
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

std::string Verdict(const Question& question, const PlanAnswer& answer) {
  if (!answer.fit.fits()) {
    std::vector<std::string> lacking;
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      if (!answer.fit.tiers[tier].fits())
        lacking.push_back(absl::StrCat(FormatBytes(answer.fit.tiers[tier].missing()), " of ",
                                       tier == 0 ? "GPU memory" : kTierTitles[tier]));
    }
    return absl::StrCat("It does not fit: ", absl::StrJoin(lacking, " and "),
                        lacking.size() > 1 ? " are" : " is", " missing.\n");
  }
  if (!answer.cost) return "It fits, as far as bytes alone tell.\n";
  return absl::StrFormat("It fits: %.4g s a step, %s tokens/s.\n", answer.cost->seconds,
                         Short(static_cast<double>(question.tokens) / answer.cost->seconds));
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
      absl::StrCat(Verdict(question, answer), "\n", AskedText(question), BytesText(answer));
  if (answer.cost) absl::StrAppend(&text, SecondsText(question, *answer.cost));
  if (!answer.fit.fits()) absl::StrAppend(&text, AdviceText(answer.advice));
  absl::StrAppend(&text, answer.cost ? OutlookText(question, wishes, answer) : "\n",
                  LargestText(answer.largest));
  if (answer.fit.fits() && question.model.config)
    absl::StrAppend(&text, "\n", TrainCommandOf(question), "\n");
  for (const std::string& note : WhatTrainsToday(question))
    absl::StrAppend(&text, "note: ", note, "\n");
  return text;
}

}  // namespace spillway::command
