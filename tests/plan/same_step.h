// SPDX-License-Identifier: Apache-2.0
//
// Says in the simplest way when two steps are the same. Tests compare StepHash with it.

#ifndef SPILLWAY_TESTS_PLAN_SAME_STEP_H_
#define SPILLWAY_TESTS_PLAN_SAME_STEP_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "src/plan/trace.h"

namespace spillway::plan {

// Returns each tile's uses (leases and discards) in order, and if it has any, its size, role and
// whether it is transient.
inline auto UsesByTile(const Trace& trace) {
  using Lease = std::tuple<TraceEvent::Kind, Tier, Access>;  // or a discard
  std::vector<std::tuple<std::vector<Lease>, uint64_t, Role, bool>> uses(trace.tiles.size());
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEvent::Kind::kRelease) continue;
    auto& [of, size_bytes, role, transient] = uses[event.tile];
    const TraceTile& tile = trace.tiles[event.tile];
    of.emplace_back(event.kind, event.tier, event.access);
    std::tie(size_bytes, role, transient) = std::tie(tile.size_bytes, tile.role, tile.transient);
  }
  while (!uses.empty() && std::get<0>(uses.back()).empty()) uses.pop_back();
  return uses;
}

// Whether two steps are the same. It does not depend on how uses of different tiles interleave, on
// times, on how readers overlap, or on which tiles had bytes before.
inline bool SameStep(const Trace& a, const Trace& b) { return UsesByTile(a) == UsesByTile(b); }

inline uint64_t Fingerprint(const Trace& trace) {
  StepHash hash;
  for (const TraceTile& tile : trace.tiles) hash.AddTile(tile);
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceEvent::Kind::kRelease) hash.Add(event);
  }
  return hash.value();
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_SAME_STEP_H_
