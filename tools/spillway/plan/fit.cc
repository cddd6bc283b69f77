// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/fit.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/step/timed_step.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

constexpr double kMostBytes = 1e18;  // of a role, so that no sum of bytes overflows

// The device's scratch beside its tiles. Micro-batches pass one after the other, so one of them
// decides.
absl::StatusOr<uint64_t> Workspace(const Question& question) {
  trainer::ModelOptions options = question.options;
  options.accumulate = 1;
  options.tiles = trainer::TilesOf(trainer::Describe(question.config()), options);
  const auto of_layers = [&](int64_t layers) {
    hf::ModelConfig config = question.config();
    config.num_layers = layers;
    if (!config.windows.empty()) config.windows.resize(static_cast<size_t>(layers));
    return WorkspaceBytes(config, options);
  };
  const int64_t layers = question.config().num_layers;
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t first, of_layers(1));
  if (layers == 1) return first;
  // Each further layer has as many sums of its gradients' squares.
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t second, of_layers(2));
  return first + static_cast<uint64_t>(layers - 1) * (second - first);
}

}  // namespace

bool Fit::fits() const {
  return std::all_of(tiers.begin(), tiers.end(), [](const TierNeed& tier) { return tier.fits(); });
}

absl::StatusOr<RoleBytes> BytesOfRoles(const Question& question) {
  std::array<double, kNumRoles> counted = {};
  RoleBytes bytes = {};
  const auto count = [&](const TensorSpec& spec) {
    const auto role = static_cast<size_t>(spec.role);
    counted[role] += static_cast<double>(spec.size_bytes());
    bytes[role] += spec.size_bytes();
  };
  const trainer::TileSizes whole = {.values = int64_t{1} << 48, .state = int64_t{1} << 48};
  const auto count_parameters = [&](const std::vector<trainer::ParameterShape>& parameters) {
    for (const trainer::ParameterShape& parameter : parameters)
      for (const TensorSpec& spec :
           trainer::ParameterTensorSpecs(parameter, question.options, whole))
        count(spec);
  };
  if (!question.model.config) {
    count_parameters(question.model.counted->parameters);
  } else {
    const trainer::Description model = trainer::Describe(question.config());
    count_parameters(model.parameters);
    for (const TensorSpec& spec : trainer::ActivationSpecs(model, question.options)) count(spec);
  }
  for (size_t role = 0; role < kNumRoles; ++role) {
    if (counted[role] <= kMostBytes) continue;
    return UsageError(
        absl::StrFormat("a step of %d tokens has %.3g bytes of %ss; at most 10^18 are planned",
                        question.tokens, counted[role], std::string(Name(Role(role)))));
  }
  return bytes;
}

absl::StatusOr<Fit> FitOf(const Question& question) {
  Fit fit;
  SPILLWAY_ASSIGN_OR_RETURN(const RoleBytes bytes, BytesOfRoles(question));
  TierNeed& device = fit.tiers[static_cast<size_t>(Tier::kDevice)];
  TierNeed& pinned = fit.tiers[static_cast<size_t>(Tier::kPinned)];
  TierNeed& nvme = fit.tiers[static_cast<size_t>(Tier::kNvme)];
  device.room = question.device_bytes();
  pinned.room = question.pinned_bytes();
  nvme.room = question.hardware.drives.total_bytes();
  for (size_t role = 0; role < kNumRoles; ++role) {
    const Tier rest = question.placement[role].value_or(Tier::kNvme);
    TierNeed& tier = fit.tiers[static_cast<size_t>(rest)];
    tier.roles[role] = bytes[role];
    tier.needed += bytes[role];
    // What a commit has stays until the next one has replaced it. Gradients and activations are in
    // none, and what rests in memory is in both.
    const bool is_committed = Role(role) != Role::kGradient && Role(role) != Role::kActivation;
    if (!is_committed || !question.keeps_commits) continue;
    fit.commit_bytes += rest == Tier::kNvme ? bytes[role] : 2 * bytes[role];
  }
  nvme.needed += fit.commit_bytes;
  if (!question.model.config) return fit;
  const trainer::MinimumBudgets least =
      trainer::SmallestBudgets(question.config(), question.options, question.placement);
  SPILLWAY_ASSIGN_OR_RETURN(fit.workspace_bytes, Workspace(question));
  device.needed = fit.workspace_bytes + least.device_bytes;
  pinned.needed = least.pinned_bytes;
  return fit;
}

absl::StatusOr<bool> LeavesRoomForTiles(const Question& question) {
  trainer::ModelOptions one = question.options;
  one.accumulate = 1;
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t workspace, Workspace(question));
  const trainer::MinimumBudgets least =
      trainer::SmallestBudgets(question.config(), one, question.placement);
  return workspace + least.device_bytes <= question.device_bytes() / 4 * 3;
}

}  // namespace spillway::command
