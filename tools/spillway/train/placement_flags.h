// SPDX-License-Identifier: Apache-2.0
//
// The flags that define where roles rest: --place ROLE=TIER,... and --activation-tier.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_PLACEMENT_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_PLACEMENT_FLAGS_H_

#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "tools/spillway/command/arguments.h"

namespace spillway::command {

// For each Role, the place that was given for it. The outer optional is empty if none was given,
// the inner one if it is "auto".
using GivenPlaces = std::array<std::optional<std::optional<Tier>>, kNumRoles>;

// Parses a text such as "optimizer=nvme,gradients=pinned". InvalidArgument: a word is unknown (the
// message lists the known ones), or a role is placed twice.
absl::StatusOr<GivenPlaces> ParsePlaces(const std::string& text);

struct PlacementFlags {
  GivenPlaces places;
  std::optional<std::optional<Tier>> activation_tier;
};
void AddPlacementFlags(CLI::App* app, PlacementFlags* flags);

// Returns the placement that both flags define. UsageError if they contradict each other.
absl::StatusOr<Placement> PlacementOf(const PlacementFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_PLACEMENT_FLAGS_H_
