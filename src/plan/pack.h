// SPDX-License-Identifier: Apache-2.0
//
// Static offsets: where in the arena each run of a tile lies, a run being uses joined by gaps that
// are kept. Runs that overlap in time never overlap in the arena, so that a plan that is followed
// meets no fragmentation.

#ifndef SPILLWAY_PLAN_PACK_H_
#define SPILLWAY_PLAN_PACK_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/plan/keeping.h"

namespace spillway::plan {

struct PackOptions {
  uint64_t capacity = 0;
  bool may_break = true;    // a gap may be given up where its run would be in the way
  std::string_view budget;  // for messages: "device_bytes"
};

// By use: the offset of its tile's frame. Gaps that had to be given up are cleared in `kept`.
// ResourceExhausted says which use did not fit and what is missing.
absl::StatusOr<std::vector<uint64_t>> Pack(const Keeping& keeping, const PackOptions& options,
                                           Kept* kept);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_PACK_H_
