// SPDX-License-Identifier: Apache-2.0
//
// Assigns static offsets: the place in the arena of each run of a tile. A run is a series of uses
// that are joined by retained gaps. Runs that overlap in time never overlap in the arena, so a plan
// that is followed meets no fragmentation.

#ifndef SPILLWAY_PLAN_PACK_H_
#define SPILLWAY_PLAN_PACK_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/plan/retention.h"

namespace spillway::plan {

struct PackOptions {
  uint64_t capacity = 0;
  bool may_break = true;    // retained gaps may be given up to make room
  std::string_view budget;  // for messages, for example "device_bytes"
};

// Returns, by use, the offset of its tile's frame. Clears in `retained` the gaps that had to be
// given up. ResourceExhausted says which tile did not fit and how many bytes are missing.
absl::StatusOr<std::vector<uint64_t>> Pack(const Retention& retention, const PackOptions& options,
                                           Retained* retained);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PACK_H_
