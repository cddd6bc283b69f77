// SPDX-License-Identifier: Apache-2.0
//
// Shows the ways without Spillway and the techniques, as JSON and as text for a terminal.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_VIEW_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_VIEW_H_

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/plan/techniques.h"

namespace spillway::command {

struct WithoutFlags {
  std::optional<int64_t> ranks;  // none: the machine's GPUs; of a single one, 8
  LoraOptions lora;

  WithoutOptions OptionsFor(const Hardware& hardware) const;
};

// Adds --ranks, --lora-rank and --lora-linears.
void AddWithoutFlags(CLI::App* app, WithoutFlags* flags);

// {"zero_3": {"fits": …, "gpu_bytes": …, "host_bytes": …, "weights": …, …}, …}
nlohmann::ordered_json ToJson(const std::vector<WithoutSpillway>& ways, const Question& question);
// Which of them fit, in a sentence.
std::string ToText(const std::vector<WithoutSpillway>& ways, const Question& question);

// [{"techniques": […], "title": …, "fits": …, "bytes": {…}, "step_seconds": …, "accuracy": …}, …]
nlohmann::ordered_json ToJson(const std::vector<TechniqueRow>& rows);
std::string ToText(const std::vector<TechniqueRow>& rows, const Question& question);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_TECHNIQUES_VIEW_H_
