// SPDX-License-Identifier: Apache-2.0
//
// Answers as JSON. Bytes are bytes and times are seconds, unless the key says otherwise.

#include "nlohmann/json.hpp"
#include "src/base/view.h"
#include "tools/spillway/plan/answer.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;
using plan::Transfer;

constexpr std::array<const char*, kNumTiers> kTierKeys = {"device", "pinned", "nvme"};
constexpr std::array<const char*, kNumRoles> kRoleKeys = {"weights", "gradients", "master_weights",
                                                          "moments", "activations"};

Json BytesToJson(const Answer& answer) {
  Json bytes;
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = answer.fit.tiers[tier];
    Json& of_tier = bytes[kTierKeys[tier]];
    of_tier["needed"] = need.needed;
    if (need.room > 0) of_tier["room"] = need.room;
    // What moves is in the device and in memory at their fullest; NVMe has room for all that rests.
    const bool moves = answer.cost && answer.cost->is_simulated && Tier(tier) != Tier::kNvme;
    for (size_t role = 0; role < kNumRoles; ++role)
      of_tier[kRoleKeys[role]] = moves ? answer.cost->fullest[tier][role] : need.roles[role];
  }
  bytes["device"]["workspace"] = answer.fit.workspace_bytes;
  bytes["nvme"]["commit"] = answer.fit.commit_bytes;
  return bytes;
}

void AddCost(const Question& question, const StepCost& cost, Json* json) {
  Json& all = *json;
  all["simulated"] = cost.is_simulated;
  all["tiles"] = cost.num_tiles;
  all["step_seconds"] = cost.seconds;
  all["seconds"] = {{"forward", cost.forward_seconds},
                    {"backward", cost.backward_seconds},
                    {"update", cost.update_seconds},
                    {"waiting", cost.waiting_seconds}};
  all["stall_seconds"] = cost.waiting_seconds;
  all["bound_seconds"] = cost.bound_seconds;
  all["walk_seconds"] = cost.walk_seconds();
  all["update_seconds"] = cost.update_seconds;
  all["tokens_per_second"] = static_cast<double>(question.tokens) / cost.seconds;
  all["mfu"] = ModelFlopUtilisation(question, cost);
  all["binds"] = WhatBinds(cost);
  for (const PartAlone& part : SecondsAlone(cost))
    all["seconds_alone"][std::string(part.key)] = part.seconds;
  all["read_bytes"] = {{"nvme", cost.bytes[Transfer::kRead]},
                       {"pinned", cost.bytes[Transfer::kCopyIn]}};
  all["written_bytes"] = {{"nvme", cost.bytes[Transfer::kWrite]},
                          {"pinned", cost.bytes[Transfer::kCopyOut]}};
  all["planned"] = cost.not_planned.empty();
  if (!cost.not_planned.empty()) all["not_planned"] = cost.not_planned;
}

Json ChangesToJson(const std::vector<FitChange>& changes) {
  Json json = Json::array();
  for (const FitChange& change : changes)
    json.push_back({{"change", change.flags}, {"costs", change.costs}});
  return json;
}

Json MissingToJson(const Fit& fit) {
  Json missing = Json::object();
  for (size_t tier = 0; tier < kNumTiers; ++tier)
    if (!fit.tiers[tier].fits()) missing[kTierKeys[tier]] = fit.tiers[tier].missing();
  return missing;
}

}  // namespace

Json ToJson(const Question& question, const Answer& answer) {
  Json json = {{"v", 1},
               {"fits", answer.fit.fits()},
               {"model", question.model.title},
               {"parameters", question.num_parameters}};
  if (question.model.config) {
    json["tokens"] = question.tokens;
    json["micro_batch"] = question.options.micro_batch;
    json["accumulate"] = question.options.accumulate;
    json["sequence"] = question.options.sequence;
  }
  json["workspace_bytes"] = answer.fit.workspace_bytes;
  json["commit_bytes"] = answer.fit.commit_bytes;
  json["bytes"] = BytesToJson(answer);
  if (answer.cost) AddCost(question, *answer.cost, &json);
  return json;
}

Json ToJson(const Question& question, const PlanWishes& wishes, const PlanAnswer& answer) {
  Json json = ToJson(question, static_cast<const Answer&>(answer));
  json["today"] = WhatTrainsToday(question);
  if (!answer.fit.fits()) {
    json["missing_bytes"] = MissingToJson(answer.fit);
    json["fits_with"] = {{"alone", ChangesToJson(answer.advice.alone)},
                         {"together", ChangesToJson(answer.advice.together)}};
  }
  const LargestModel& largest = answer.largest;
  json["largest_parameters"] = largest.parameters;
  if (largest.layers > 0) json["largest_layers"] = largest.layers;
  json["largest_is_limited_by"] =
      largest.is_limited ? Json(std::string(largest.full_first)) : Json(nullptr);
  if (!answer.cost) return json;
  const StepCost& cost = *answer.cost;
  json["tokens_that_hide_io"] = TokensThatHideIo(question, cost);
  json["train_tokens"] = wishes.train_tokens;
  json["train_days"] = DaysFor(wishes.train_tokens, question, cost);
  const DriveWear wear = WearOf(wishes.endurance_bytes, question, cost);
  json["written_bytes_a_day_per_drive"] = wear.written_a_day;
  if (wear.days > 0) json["drive_life_days"] = wear.days;
  Json& more = json["step_seconds_with"];
  for (const MoreOfOne& one : answer.more) more[std::string(one.key)] = one.seconds;
  json["train"] = TrainCommandOf(question, answer.fit);
  return json;
}

}  // namespace spillway::command
