// SPDX-License-Identifier: Apache-2.0
//
// Where roles rest, as the command line says it: --place ROLE=TIER,... and --activation-tier.

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

// By Role: what was said of it, if anything. The inner one is none for "auto".
using GivenPlaces = std::array<std::optional<std::optional<Tier>>, kNumRoles>;

// "optimizer=nvme,gradients=pinned". InvalidArgument names what is not understood and what would
// be, or the role that comes twice.
absl::StatusOr<GivenPlaces> ParsePlaces(const std::string& text);

struct PlacementFlags {
  GivenPlaces places;
  std::optional<std::optional<Tier>> activation_tier;
};
void AddPlacementFlags(CLI::App* app, PlacementFlags* flags);

// UsageError if the two contradict each other.
absl::StatusOr<Placement> PlacementOf(const PlacementFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_PLACEMENT_FLAGS_H_
