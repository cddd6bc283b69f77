// SPDX-License-Identifier: Apache-2.0
//
// Ways to choose what plans retain, for tests. kPlanned is the product's. The others imitate
// caches; they give plans other shapes, and the product's plan is compared with theirs.

#ifndef SPILLWAY_TESTS_PLAN_POLICIES_H_
#define SPILLWAY_TESTS_PLAN_POLICIES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "src/plan/retention.h"
#include "src/plan/room_tree.h"
#include "src/plan/ways_to_retain.h"

namespace spillway::plan {

enum class Policy : uint8_t {
  kPlanned,  // retains what saves most bytes for its room
  kLru,      // retains what was used last
  kFifo,     // retains what came in last
  kPrefix,   // retains a fixed set, in order of first use; others leave after each use
  kNone,     // retains nothing
};
inline constexpr int kNumPolicies = 5;

// Simulates three periods of a cache that evicts on demand the tile that was used, or came in,
// longest ago. Retains the gaps through which a tile stayed in the last period.
inline Retained RetainByAge(const Retention& retention, uint64_t capacity, bool by_use) {
  constexpr uint64_t kAbsent = ~uint64_t{0};
  std::vector<uint32_t> begins(retention.num_positions, ~0u),
      ends(retention.num_positions + 1, ~0u);
  for (uint32_t u = 0; u < retention.uses.size(); ++u) {
    if (retention.has_reserved_frame(retention.uses[u].tile)) continue;
    begins[retention.uses[u].begin] = u;
    if (retention.uses[u].kind == Use::Kind::kHold) ends[retention.uses[u].end] = u;
  }
  Retained retained(retention.uses.size());
  std::vector<uint64_t> stamp(retention.num_tiles(), kAbsent);
  std::set<std::pair<uint64_t, TileIndex>> idle;  // by stamp
  uint64_t used_bytes = 0, clock = 0;
  const auto leave = [&](TileIndex tile) {
    idle.erase({stamp[tile], tile});
    stamp[tile] = kAbsent;
    used_bytes -= retention.size_bytes[tile];
  };
  const auto begin_use = [&](uint32_t u) {
    const TileIndex tile = retention.uses[u].tile;
    const uint32_t before = u == retention.first[tile] ? retention.first[tile + 1] - 1 : u - 1;
    retained[before] = stamp[tile] != kAbsent && !retention.uses[before].leaves;
    if (retention.uses[u].kind == Use::Kind::kVoid) {
      if (stamp[tile] != kAbsent) leave(tile);
      return;
    }
    if (stamp[tile] != kAbsent) {
      idle.erase({stamp[tile], tile});
    } else {
      used_bytes += retention.size_bytes[tile];
      while (used_bytes > capacity && !idle.empty()) leave(idle.begin()->second);
      stamp[tile] = ++clock;
    }
    if (by_use) stamp[tile] = ++clock;
  };
  for (int round = 0; round < 3; ++round) {
    for (uint32_t p = 0; p <= retention.num_positions; ++p) {
      if (ends[p] != ~0u) {
        const TileIndex tile = retention.uses[ends[p]].tile;
        idle.insert({stamp[tile], tile});
        if (retention.uses[ends[p]].away) leave(tile);
      }
      if (p < retention.num_positions && begins[p] != ~0u) begin_use(begins[p]);
    }
  }
  return retained;
}

// Retains epochs in the order of their tiles' first uses, up to the first that does not fit.
inline Retained RetainPrefix(const Retention& retention, uint64_t capacity) {
  std::vector<Epoch> epochs = AllEpochs(retention);
  std::ranges::stable_sort(epochs, {}, [&](const Epoch& epoch) {
    return retention.uses[retention.first[retention.uses[epoch.first_gap].tile]].begin;
  });
  Retained retained(retention.uses.size());
  RoomTree room(retention.use_bytes, capacity);
  for (const Epoch& epoch : epochs) {
    bool fits = true;
    Retained with_epoch = retained;
    ForGaps(retention, epoch, [&](uint32_t gap) {
      if (!fits || retained[gap]) return;
      with_epoch[gap] = fits =
          room.Add(retention.uses[gap].end, retention.GapEnd(gap), retention.UseBytes(gap));
    });
    if (!fits) break;
    retained = std::move(with_epoch);
  }
  return retained;
}

// Returns the function for PlanOptions::choose_retained.
inline ChooseRetained* FunctionOf(Policy policy) {
  static constexpr std::array<ChooseRetained*, kNumPolicies> kFunctions = {
      &WaysToRetain,
      [](const Retention& retention, uint64_t capacity, Stop) {
        return std::vector<Retained>{RetainByAge(retention, capacity, /*by_use=*/true)};
      },
      [](const Retention& retention, uint64_t capacity, Stop) {
        return std::vector<Retained>{RetainByAge(retention, capacity, /*by_use=*/false)};
      },
      [](const Retention& retention, uint64_t capacity, Stop) {
        return std::vector<Retained>{RetainPrefix(retention, capacity)};
      },
      [](const Retention& retention, uint64_t /*capacity*/, Stop) {
        return std::vector<Retained>{Retained(retention.uses.size())};
      },
  };
  return kFunctions[static_cast<size_t>(policy)];
}

inline std::string_view Name(Policy policy) {
  static constexpr std::array<std::string_view, kNumPolicies> kNames = {"planned", "lru", "fifo",
                                                                        "prefix", "none"};
  return kNames[static_cast<size_t>(policy)];
}

}  // namespace spillway::plan

#endif  // SPILLWAY_TESTS_PLAN_POLICIES_H_
