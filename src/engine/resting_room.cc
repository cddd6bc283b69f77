// SPDX-License-Identifier: Apache-2.0

#include "src/engine/resting_room.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/engine/pager/arena_map.h"

namespace spillway::engine {
namespace {

uint64_t FrameBytes(uint64_t tile_bytes) { return base::RoundUp(tile_bytes, kFrameAlignment); }

// Bytes of all the tensor's frames.
uint64_t TensorBytes(const TensorSpec& spec) {
  const uint64_t last = spec.num_tiles() - 1;
  return last * FrameBytes(spec.tile_bytes(0)) + FrameBytes(spec.tile_bytes(last));
}

}  // namespace

absl::Status RestingRoom::Add(const TensorSpec& spec) {
  role_bytes_[static_cast<size_t>(spec.role)] += TensorBytes(spec);
  if (PassesThroughPinned(spec)) ++passing_[FrameBytes(spec.tile_bytes(0))];
  absl::Status status = Check(spec, Tier::kDevice);
  status.Update(Check(spec, Tier::kPinned));
  if (!status.ok()) Remove(spec);
  return status;
}

void RestingRoom::Remove(const TensorSpec& spec) {
  role_bytes_[static_cast<size_t>(spec.role)] -= TensorBytes(spec);
  if (!PassesThroughPinned(spec)) return;
  const auto passing = passing_.find(FrameBytes(spec.tile_bytes(0)));
  if (--passing->second == 0) passing_.erase(passing);
}

absl::Status RestingRoom::Check(const TensorSpec& spec, Tier tier) const {
  const bool is_device = tier == Tier::kDevice;
  const uint64_t budget = budget_bytes_[is_device ? 0 : 1];
  const uint64_t passing = is_device || passing_.empty() ? 0 : passing_.rbegin()->first;
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
