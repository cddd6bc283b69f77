// SPDX-License-Identifier: Apache-2.0
//
// Whether a step fits: what each tier must hold, with the tiles that a run would have, beside what
// it has room for.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "tools/spillway/plan/question.h"

namespace spillway::command {

using RoleBytes = std::array<uint64_t, kNumRoles>;

struct TierNeed {
  uint64_t needed = 0;
  uint64_t room = 0;     // 0: not limited
  RoleBytes roles = {};  // of `needed`, what rests there

  bool fits() const { return room == 0 || needed <= room; }
  uint64_t missing() const { return fits() ? 0 : needed - room; }
};

struct Fit {
  std::array<TierNeed, kNumTiers> tiers;  // by Tier
  uint64_t workspace_bytes = 0;           // of the device, beside its tiles
  uint64_t commit_bytes = 0;              // of NVMe's `needed`: the copy that a commit keeps

  const TierNeed& operator[](Tier tier) const { return tiers[static_cast<size_t>(tier)]; }
  bool fits() const;
};

// Bytes of all tensors of each role. UsageError if they are more than can be counted.
absl::StatusOr<RoleBytes> BytesOfRoles(const Question& question);

// Of a model that was counted, the device and memory need what rests there alone. UsageError as
// above. Errors of WorkspaceBytes.
absl::StatusOr<Fit> FitOf(const Question& question);

// Whether a micro-batch of this size leaves a quarter of the device for tiles.
absl::StatusOr<bool> LeavesRoomForTiles(const Question& question);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_H_
