// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/answer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"
#include "src/plan/bounds.h"
#include "tools/trainer/flops.h"

namespace spillway::command {
namespace {

using base::FormatBytes;
using base::View;
using plan::Transfer;

constexpr std::array<const char*, kNumTiers> kTierNames = {"device", "pinned", "nvme"};
constexpr std::array<const char*, kNumRoles> kRoleNames = {"weights", "gradients", "master_weights",
                                                           "moments", "activations"};
constexpr std::array<Transfer, 4> kLinks = {Transfer::kRead, Transfer::kWrite, Transfer::kCopyIn,
                                            Transfer::kCopyOut};
constexpr std::array<const char*, 4> kLinkNames = {
    "NVMe reads", "NVMe writes", "copies to the device", "copies from the device"};

std::array<TierNeed, kNumTiers> Needs(const Question& question, uint64_t workspace_bytes,
                                      const plan::Trace& trace, uint64_t* commit_bytes) {
  const trainer::MinimumBudgets least =
      trainer::SmallestBudgets(question.config, question.options, question.placement);
  std::array<TierNeed, kNumTiers> tiers;
  TierNeed& device = tiers[static_cast<size_t>(Tier::kDevice)];
  device = {.needed = workspace_bytes + least.device_bytes, .room = question.device_bytes()};
  TierNeed& pinned = tiers[static_cast<size_t>(Tier::kPinned)];
  pinned = {.needed = least.pinned_bytes, .room = question.pinned_bytes()};
  TierNeed& nvme = tiers[static_cast<size_t>(Tier::kNvme)];
  nvme.room = question.hardware.drives.total_bytes();
  for (const plan::TraceTile& tile : trace.tiles) {
    const auto role = static_cast<size_t>(tile.role);
    const Tier rest = question.placement[role].value_or(Tier::kNvme);
    tiers[static_cast<size_t>(rest)].roles[role] += tile.size_bytes;
    if (tile.transient) continue;
    *commit_bytes += tile.size_bytes;
  }
  // What a commit has stays until the next one has replaced it.
  nvme.needed = *commit_bytes;
  for (const uint64_t bytes : nvme.roles) nvme.needed += bytes;
  return tiers;
}

std::string FormatCount(double count) {
  const auto scaled = [&](double unit, const char* name) {
    return absl::StrFormat("%.4g %s", count / unit, name);
  };
  if (count >= 1e12) return scaled(1e12, "T");
  if (count >= 1e9) return scaled(1e9, "B");
  return scaled(1e6, "M");
}

}  // namespace

bool Answer::fits() const {
  return std::all_of(tiers.begin(), tiers.end(), [](const TierNeed& tier) { return tier.fits(); });
}

absl::StatusOr<Answer> AnswerQuestion(const Question& question, uint64_t timeline_events) {
  SPILLWAY_ASSIGN_OR_RETURN(TimedStep step,
                            TimeStep(question.config, question.options, question.rates()));
  Answer answer;
  answer.workspace_bytes = step.workspace_bytes;
  answer.num_tiles = step.trace.tiles.size();
  answer.tiers = Needs(question, step.workspace_bytes, step.trace, &answer.commit_bytes);
  answer.flops = step.flops;
  answer.model_flops = trainer::StepFlops(question.config, question.options);
  answer.walk_seconds = step.walk_seconds;
  answer.update_seconds = step.update_seconds;
  if (!answer.fits()) return answer;

  simulation::SimulationOptions options;
  options.budgets.device_bytes = question.device_bytes() - step.workspace_bytes;
  options.budgets.pinned_bytes = question.pinned_bytes();
  options.placement = question.placement;
  options.machine = question.hardware.Links();
  options.timeline_events = timeline_events;
  SPILLWAY_ASSIGN_OR_RETURN(answer.simulated, simulation::SimulateStep(step.trace, options));
  const plan::Rates rates = options.machine.Rates();
  for (size_t i = 0; i < kLinks.size(); ++i) {
    answer.link_seconds[i] =
        static_cast<double>(answer.simulated.step.bytes[kLinks[i]]) / rates[kLinks[i]];
  }
  const plan::SecondsBound bound(step.trace, options.budgets,
                                 plan::BoundBytes(step.trace, options.budgets));
  plan::EventLog log;
  for (const plan::TraceEvent& event : step.trace.events) log.push_back(event);
  answer.bound_seconds = bound.Seconds(plan::SecondsBound::Computing(log), rates);
  return answer;
}

std::string_view WhatBinds(const Answer& answer) {
  std::string_view name = "computing";
  double most = answer.walk_seconds;
  const auto consider = [&](double seconds, std::string_view what) {
    if (seconds > most) most = seconds, name = what;
  };
  consider(answer.update_seconds, "the update");
  for (size_t i = 0; i < kLinks.size(); ++i) consider(answer.link_seconds[i], kLinkNames[i]);
  return name;
}

std::string ToText(const Question& question, const Answer& answer) {
  const Hardware& hardware = question.hardware;
  std::string text =
      absl::StrFormat("model      %s: %s parameters in %d tiles\n", question.title,
                      FormatCount(static_cast<double>(question.num_parameters)), answer.num_tiles);
  if (question.preset != nullptr && !question.preset->differs.empty())
    absl::StrAppend(&text, "           ", View(question.preset->differs),
                    "; the step is that of the nearest model that Spillway knows\n");
  absl::StrAppendFormat(&text, "machine    %s, %s of memory, %s at %s/s read and %s/s written\n",
                        std::string(hardware.gpu.title), FormatBytes(hardware.dram_bytes),
                        base::FormatCount(static_cast<uint64_t>(hardware.drives.count), "drive"),
                        FormatBytes(static_cast<uint64_t>(hardware.drives.read)),
                        FormatBytes(static_cast<uint64_t>(hardware.drives.write)));
  absl::StrAppendFormat(&text, "step       %d tokens: %d micro-batch(es) of %d window(s) of %d\n",
                        question.tokens, question.options.accumulate, question.options.micro_batch,
                        question.options.sequence);
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = answer.tiers[tier];
    absl::StrAppendFormat(&text, "%-10s needs %s", kTierNames[tier], FormatBytes(need.needed));
    if (tier == static_cast<size_t>(Tier::kDevice))
      absl::StrAppend(&text, ", ", FormatBytes(answer.workspace_bytes), " of it workspace");
    if (tier == static_cast<size_t>(Tier::kNvme))
      absl::StrAppend(&text, ", ", FormatBytes(answer.commit_bytes), " of it a commit's copy");
    absl::StrAppend(&text, need.room == 0 ? "" : absl::StrCat("; has ", FormatBytes(need.room)),
                    need.fits() ? "" : "   TOO LITTLE", "\n");
  }
  if (!answer.fits()) return absl::StrCat(text, "It does not fit.\n");
  const simulation::StepResult& result = answer.simulated.step;
  absl::StrAppendFormat(
      &text,
      "time       %.4g s a step, of which %.4g s waiting; no schedule takes less than %.4g s\n"
      "           %.4g tokens/s, %.1f%% of the GPU's peak; %s bind(s)\n"
      "moves      NVMe %s read, %s written; device %s in, %s out\n",
      result.seconds, result.stall_seconds, answer.bound_seconds,
      static_cast<double>(question.tokens) / result.seconds,
      100 * answer.model_flops / (result.seconds * hardware.gpu.flops),
      std::string(WhatBinds(answer)), FormatBytes(result.bytes[Transfer::kRead]),
      FormatBytes(result.bytes[Transfer::kWrite]), FormatBytes(result.bytes[Transfer::kCopyIn]),
      FormatBytes(result.bytes[Transfer::kCopyOut]));
  if (!answer.simulated.not_planned.empty())
    absl::StrAppend(
        &text, "           the step is served on demand: ", answer.simulated.not_planned, "\n");
  return text;
}

nlohmann::ordered_json ToJson(const Question& question, const Answer& answer) {
  nlohmann::ordered_json json = {{"v", 1},
                                 {"fits", answer.fits()},
                                 {"model", question.title},
                                 {"parameters", question.num_parameters},
                                 {"tiles", answer.num_tiles},
                                 {"tokens", question.tokens},
                                 {"micro_batch", question.options.micro_batch},
                                 {"accumulate", question.options.accumulate},
                                 {"sequence", question.options.sequence},
                                 {"workspace_bytes", answer.workspace_bytes},
                                 {"commit_bytes", answer.commit_bytes}};
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = answer.tiers[tier];
    nlohmann::ordered_json& bytes = json["bytes"][kTierNames[tier]];
    bytes["needed"] = need.needed;
    if (need.room > 0) bytes["room"] = need.room;
    for (size_t role = 0; role < kNumRoles; ++role) bytes[kRoleNames[role]] = need.roles[role];
  }
  if (!answer.fits()) return json;
  const simulation::StepResult& step = answer.simulated.step;
  json["step_seconds"] = step.seconds;
  json["stall_seconds"] = step.stall_seconds;
  json["bound_seconds"] = answer.bound_seconds;
  json["walk_seconds"] = answer.walk_seconds;
  json["update_seconds"] = answer.update_seconds;
  json["tokens_per_second"] = static_cast<double>(question.tokens) / step.seconds;
  json["mfu"] = answer.model_flops / (step.seconds * question.hardware.gpu.flops);
  json["binds"] = WhatBinds(answer);
  json["read_bytes"] = {{"nvme", step.bytes[Transfer::kRead]},
                        {"pinned", step.bytes[Transfer::kCopyOut]}};
  json["written_bytes"] = {{"nvme", step.bytes[Transfer::kWrite]},
                           {"pinned", step.bytes[Transfer::kCopyIn]}};
  json["planned"] = answer.simulated.not_planned.empty();
  return json;
}

}  // namespace spillway::command
