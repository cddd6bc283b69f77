// SPDX-License-Identifier: Apache-2.0
//
// Checks that a placement fits its budgets: all tiles of the roles that rest on the device, or in
// pinned memory, must fit there at once. The check runs as tensors are registered, so that a
// placement that does not fit fails before any step. Values; not thread-safe.

#ifndef SPILLWAY_ENGINE_RESTING_ROOM_H_
#define SPILLWAY_ENGINE_RESTING_ROOM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "spillway/types.h"

namespace spillway::engine {

class RestingRoom {
 public:
  RestingRoom() = default;
  RestingRoom(const Placement& placement, uint64_t device_bytes, uint64_t pinned_bytes)
      : placement_(placement), budget_bytes_{device_bytes, pinned_bytes} {}

  // Takes room for one more tensor. ResourceExhausted: its frames do not fit beside those that rest
  // in the tier already or, in pinned memory, beside those and the largest tile of all tensors that
  // only pass through it. No room is taken then. The message names the tier, the roles, the bytes
  // that they take, the budget and the fix.
  absl::Status Add(const TensorSpec& spec);
  // Gives back what Add took.
  void Remove(const TensorSpec& spec);

 private:
  bool PassesThroughPinned(const TensorSpec& spec) const {
    return placement_[static_cast<size_t>(spec.role)] != Tier::kPinned;
  }
  absl::Status Check(const TensorSpec& spec, Tier tier) const;

  Placement placement_ = {};
  std::array<uint64_t, 2> budget_bytes_ = {kUnlimited, kUnlimited};  // kDevice, kPinned
  std::array<uint64_t, kNumRoles> role_bytes_ = {};                  // of all frames, by Role
  // The size of the largest frame of each tensor that does not rest in pinned memory: how many
  // tensors have this size.
  std::map<uint64_t, size_t> passing_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RESTING_ROOM_H_
