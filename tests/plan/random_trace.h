// SPDX-License-Identifier: Apache-2.0
//
// Random steps: tiles of various sizes, transient or not, with or without stored bytes, and leases
// of several tiles that overlap in time, in both tiers.

#ifndef SPILLWAY_TESTS_PLAN_RANDOM_TRACE_H_
#define SPILLWAY_TESTS_PLAN_RANDOM_TRACE_H_

#include <algorithm>
#include <random>
#include <vector>

#include "src/plan/trace.h"

namespace spillway::plan {

struct RandomTraceOptions {
  int tiles = 8;
  int leases = 30;
  int held = 3;  // most leases held at once
  uint64_t max_tile_units = 4;
  uint64_t unit = 1;
  bool pinned_only = false;
  bool transients = true;
};

// Returns a random step. Reads of a tile may overlap. A write overlaps no other lease of its tile.
inline Trace RandomTrace(const RandomTraceOptions& options, std::mt19937& random) {
  struct Held {
    TileIndex tile;
    Tier tier;
    Access access;
  };
  TraceRecorder recorder;
  std::vector<bool> transient;
  for (int i = 0; i < options.tiles; ++i) {
    transient.push_back(options.transients && random() % 4 == 0);
    recorder.AddTile({.size_bytes = options.unit * (1 + random() % options.max_tile_units),
                      .role = Role::kParameter,
                      .transient = transient.back(),
                      .stored = !transient.back() && random() % 8 != 0});
  }
  std::vector<Held> held;
  double now = 0;
  recorder.Begin(now);
  const auto release = [&](size_t i) {
    recorder.Release(held[i].tile, held[i].tier, held[i].access, now);
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const auto conflicts = [&](TileIndex tile, Access access) {
    return std::any_of(held.begin(), held.end(), [&](const Held& other) {
      return other.tile == tile && (Writes(access) || Writes(other.access));
    });
  };
  for (int leases = 0; leases < options.leases;) {
    now += static_cast<double>(random() % 4) * 1e-3;
    const auto tile = static_cast<TileIndex>(random() % options.tiles);
    if (!held.empty() && (held.size() == static_cast<size_t>(options.held) || random() % 3 == 0)) {
      release(random() % held.size());
    } else if (transient[tile] && random() % 4 == 0) {
      if (!conflicts(tile, Access::kWrite)) recorder.Discard(tile, now);
    } else {
      static constexpr Access kAccesses[] = {Access::kRead,  Access::kRead,      Access::kRead,
                                             Access::kWrite, Access::kReadWrite, Access::kDiscard};
      const Access access = kAccesses[random() % 6];
      if (conflicts(tile, access)) continue;
      const Tier tier = options.pinned_only || random() % 3 == 0 ? Tier::kPinned : Tier::kDevice;
      recorder.Acquire(tile, tier, access, now, now);
      held.push_back({tile, tier, access});
      ++leases;
    }
  }
  while (!held.empty()) release(held.size() - 1);
  return recorder.End();
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_RANDOM_TRACE_H_
