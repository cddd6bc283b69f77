// SPDX-License-Identifier: Apache-2.0
//
// The room that a placement asks for: whether all tiles of the roles that rest on the device, or in
// pinned memory, fit there at once. Checked as tensors are registered, so that a placement that
// cannot hold fails before any step. Values; not thread-safe.

#ifndef SPILLWAY_ENGINE_RESTING_ROOM_H_
#define SPILLWAY_ENGINE_RESTING_ROOM_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "spillway/types.h"

namespace spillway::engine {

class RestingRoom {
 public:
  RestingRoom() = default;
  RestingRoom(const Placement& placement, uint64_t device_bytes, uint64_t pinned_bytes)
      : placement_(placement), budget_bytes_{device_bytes, pinned_bytes} {}

  // With one more tensor. ResourceExhausted names the tier, the roles, what they take, the budget
  // and the fix: its frames do not fit beside those that rest there already; or, in pinned memory,
  // not with the largest tile of all others, which passes through it.
  absl::StatusOr<RestingRoom> With(const TensorSpec& spec) const;

 private:
  absl::Status Check(const TensorSpec& spec, Tier tier) const;

  Placement placement_ = {};
  std::array<uint64_t, 2> budget_bytes_ = {kUnlimited, kUnlimited};  // kDevice, kPinned
  std::array<uint64_t, kNumRoles> role_bytes_ = {};  // of frames, of roles that are placed
  uint64_t largest_passing_bytes_ = 0;  // frame of a tile that does not rest in pinned memory
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_RESTING_ROOM_H_
