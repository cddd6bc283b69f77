// SPDX-License-Identifier: Apache-2.0

#include "src/engine/resting_room.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/engine/pager/arena_map.h"

namespace spillway::engine {
namespace {

uint64_t FrameBytes(uint64_t tile_bytes) { return base::RoundUp(tile_bytes, kFrameAlignment); }

}  // namespace

absl::StatusOr<RestingRoom> RestingRoom::With(const TensorSpec& spec) const {
  RestingRoom with = *this;
  const auto role = static_cast<size_t>(spec.role);
  const uint64_t last = spec.num_tiles() - 1;
  with.role_bytes_[role] +=
      last * FrameBytes(spec.tile_bytes(0)) + FrameBytes(spec.tile_bytes(last));
  if (placement_[role] != Tier::kPinned) {
    with.largest_passing_bytes_ =
        std::max(with.largest_passing_bytes_, FrameBytes(spec.tile_bytes(0)));
  }
  SPILLWAY_RETURN_IF_ERROR(with.Check(spec, Tier::kDevice));
  SPILLWAY_RETURN_IF_ERROR(with.Check(spec, Tier::kPinned));
  return with;
}

absl::Status RestingRoom::Check(const TensorSpec& spec, Tier tier) const {
  const bool is_device = tier == Tier::kDevice;
  const uint64_t budget = budget_bytes_[is_device ? 0 : 1];
  const uint64_t passing = is_device ? 0 : largest_passing_bytes_;
  uint64_t resting = 0;
  std::string roles;
  for (int role = 0; role < kNumRoles; ++role) {
    if (placement_[role] != tier || role_bytes_[role] == 0) continue;
    resting += role_bytes_[role];
    absl::StrAppend(&roles, roles.empty() ? "" : ", ", std::string(Name(static_cast<Role>(role))),
                    " ", base::FormatBytes(role_bytes_[role]));
  }
  if (resting == 0 || resting + passing <= budget) return absl::OkStatus();
  const std::string budget_name = is_device ? "device_bytes" : "pinned_bytes";
  return absl::ResourceExhaustedError(absl::StrCat(
      "tensor '", spec.name, "': roles that are placed in ", std::string(Name(tier)),
      " memory take at least ", base::FormatBytes(resting), " there by now (", roles, ")",
      passing > 0
          ? absl::StrCat(", and other tiles that pass through it ", base::FormatBytes(passing))
          : "",
      "; ", budget_name, " is ", base::FormatBytes(budget), ": raise it to at least ",
      base::FormatBytes(resting + passing), " (", resting + passing,
      " bytes), or place fewer roles there"));
}

}  // namespace spillway::engine
