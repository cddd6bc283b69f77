// SPDX-License-Identifier: Apache-2.0
//
// What `spillway plan` and `spillway simulate` answer: whether a step fits, and what it takes.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "spillway/types.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/plan/question.h"

namespace spillway::command {

// What a tier must hold, and what it has room for.
struct TierNeed {
  uint64_t needed = 0;
  uint64_t room = 0;                           // 0: not limited
  std::array<uint64_t, kNumRoles> roles = {};  // of `needed`, what rests there

  bool fits() const { return room == 0 || needed <= room; }
};

struct Answer {
  std::array<TierNeed, kNumTiers> tiers;
  uint64_t workspace_bytes = 0;  // of the device, beside its tiles
  uint64_t commit_bytes = 0;     // of NVMe's `needed`: the copy that a commit keeps
  uint64_t num_tiles = 0;
  // If it fits:
  simulation::RepeatedStep simulated;
  double flops = 0;                         // of products and attention in a step
  double model_flops = 0;                   // without those that are computed again
  double walk_seconds = 0;                  // forward and backward, if nothing waited
  double update_seconds = 0;                // the update, if nothing waited
  double bound_seconds = 0;                 // what no schedule within the budgets can beat
  std::array<double, 4> link_seconds = {};  // by Transfer: if nothing else bound

  bool fits() const;
};

absl::StatusOr<Answer> AnswerQuestion(const Question& question, uint64_t timeline_events = 0);

// What binds the step: "computing", "the update", "NVMe reads", ... whichever takes longest alone.
std::string_view WhatBinds(const Answer& answer);
std::string ToText(const Question& question, const Answer& answer);
nlohmann::ordered_json ToJson(const Question& question, const Answer& answer);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_ANSWER_H_
