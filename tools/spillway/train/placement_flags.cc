// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/placement_flags.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

using Choice = std::optional<Tier>;

struct RoleWord {
  std::string_view word;
  std::vector<Role> roles;
};
const std::vector<RoleWord>& RoleWords() {
  static const auto& words =
      *new std::vector<RoleWord>{{"parameters", {Role::kParameter}},
                                 {"gradients", {Role::kGradient}},
                                 {"master-weights", {Role::kMasterWeight}},
                                 {"moments", {Role::kMoment}},
                                 {"optimizer", {Role::kMasterWeight, Role::kMoment}},
                                 {"activations", {Role::kActivation}}};
  return words;
}

const std::vector<std::pair<std::string, Choice>>& TierWords() {
  static const auto& words = *new std::vector<std::pair<std::string, Choice>>{
      {"device", Tier::kDevice}, {"pinned", Tier::kPinned}, {"nvme", Tier::kNvme}, {"auto", {}}};
  return words;
}

absl::StatusOr<std::vector<Role>> ParseRoles(const std::string& text) {
  std::string words;
  for (const auto& [word, roles] : RoleWords()) {
    if (word == text) return roles;
    absl::StrAppendFormat(&words, "%s%s", words.empty() ? "" : "|", std::string(word));
  }
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not one of %s", text, words));
}

absl::StatusOr<Choice> ParseTier(const std::string& text) {
  for (const auto& [word, tier] : TierWords()) {
    if (word == text) return tier;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' is not one of device|pinned|nvme|auto", text));
}

std::string WordOf(Choice tier) { return tier ? std::string(Name(*tier)) : "auto"; }

}  // namespace

absl::StatusOr<GivenPlaces> ParsePlaces(const std::string& text) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> parts, ParseList(text));
  GivenPlaces places;
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' is not ROLE=TIER, as in optimizer=nvme", part));
    }
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Role> roles, ParseRoles(part.substr(0, equals)));
    SPILLWAY_ASSIGN_OR_RETURN(const Choice tier, ParseTier(part.substr(equals + 1)));
    for (const Role role : roles) {
      auto& place = places[static_cast<size_t>(role)];
      if (place) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "'%s' places %s a second time: give each role once", part, std::string(Name(role))));
      }
      place = tier;
    }
  }
  return places;
}

void AddPlacementFlags(CLI::App* app, PlacementFlags* flags) {
  AddParsed(
      app, "--place", &flags->places, ParsePlaces,
      "Where roles rest between uses: parameters, gradients, master-weights, moments, "
      "optimizer (the last two) or activations, each =device|pinned|nvme|auto. device and "
      "pinned must hold all of a role; nvme lets nothing of it stay in memory. Numbers computed "
      "do not depend on it")
      .Type("ROLE=TIER,...");
  AddParsed(app, "--activation-tier", &flags->activation_tier, ParseTier,
            "The same as --place activations=TIER")
      .Type("device|pinned|nvme|auto");
}

absl::StatusOr<Placement> PlacementOf(const PlacementFlags& flags) {
  GivenPlaces places = flags.places;
  auto& activations = places[static_cast<size_t>(Role::kActivation)];
  if (flags.activation_tier && activations && *activations != *flags.activation_tier) {
    return UsageError(absl::StrFormat(
        "--activation-tier %s contradicts --place activations=%s; give one of the two",
        WordOf(*flags.activation_tier), WordOf(*activations)));
  }
  if (flags.activation_tier) activations = flags.activation_tier;
  Placement placement;
  for (size_t role = 0; role < kNumRoles; ++role) placement[role] = places[role].value_or(Choice());
  return placement;
}

}  // namespace spillway::command
