// SPDX-License-Identifier: Apache-2.0

#include "src/plan/keep.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "src/plan/prices.h"
#include "src/plan/room_tree.h"

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, kNumPolicies> kNames = {"planned", "lru", "fifo", "prefix",
                                                               "none"};

// Gaps that may be kept together, and what that is worth.
struct Candidate {
  Epoch epoch;
  float worth = 0;
  uint32_t length = 0;
};

uint32_t GapLength(const Keeping& keeping, uint32_t gap) {
  const uint32_t begin = keeping.uses[gap].end, end = keeping.uses[keeping.Next(gap)].begin;
  return end >= begin ? end - begin : end + keeping.num_positions - begin;
}

// A dirty epoch as a whole, and each gap that saves a read alone.
template <typename Visit>
void ForEachCandidate(const Keeping& keeping, const Visit& visit) {
  std::vector<Epoch> epochs;
  for (TileIndex tile = 0; tile < keeping.num_tiles(); ++tile) {
    epochs.clear();
    EpochsOf(keeping, tile, &epochs);
    for (const Epoch& epoch : epochs) {
      visit(epoch);
      uint32_t gap = epoch.first_gap;
      for (uint32_t i = 0; epoch.dirty && epoch.num_gaps > 1 && i < epoch.num_gaps; ++i) {
        if (keeping.SavesRead(gap)) visit(Epoch{gap, 1, false});
        gap = keeping.Next(gap);
      }
      // Of one gap: kept or not is the whole question.
    }
  }
}

bool KeepEpoch(const Keeping& keeping, const Epoch& epoch, RoomTree& room, Kept& kept) {
  std::vector<uint32_t> added;
  uint32_t gap = epoch.first_gap;
  for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = keeping.Next(gap)) {
    if (kept[gap]) continue;
    const uint32_t begin = keeping.uses[gap].end, end = keeping.uses[keeping.Next(gap)].begin;
    if (room.Add(begin, end, keeping.UseBytes(gap))) {
      added.push_back(gap);
      continue;
    }
    for (const uint32_t other : added) {
      room.Remove(keeping.uses[other].end, keeping.uses[keeping.Next(other)].begin,
                  keeping.UseBytes(other));
    }
    return false;
  }
  for (const uint32_t other : added) kept[other] = true;
  return true;
}

// Takes what is worth most first; of equals the shorter, then the first.
template <typename Worth>
Kept KeepByWorth(const Keeping& keeping, uint64_t capacity, const Worth& worth) {
  std::vector<Candidate> candidates;
  ForEachCandidate(keeping, [&](const Epoch& epoch) {
    Candidate candidate{epoch};
    uint32_t gap = epoch.first_gap;
    for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = keeping.Next(gap))
      candidate.length += GapLength(keeping, gap);
    candidate.worth = worth(epoch, candidate.length);
    candidates.push_back(candidate);
  });
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.worth != b.worth ? a.worth > b.worth : a.length < b.length;
                   });
  Kept kept(keeping.uses.size());
  RoomTree room(keeping, capacity);
  for (const Candidate& candidate : candidates) KeepEpoch(keeping, candidate.epoch, room, kept);
  return kept;
}

float Saves(const Keeping& keeping, const Epoch& epoch) {
  float saves = epoch.dirty ? 1 : 0;
  uint32_t gap = epoch.first_gap;
  for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = keeping.Next(gap))
    saves += keeping.SavesRead(gap) ? 1 : 0;
  return saves;
}

Kept KeepPlanned(const Keeping& keeping, uint64_t capacity) {
  Kept best = KeepByWorth(keeping, capacity, [&](const Epoch& epoch, uint32_t length) {
    return Saves(keeping, epoch) / static_cast<float>(length + 1);
  });
  uint64_t best_bytes = Cost(keeping, best).total();
  const Prices prices = FindPrices(keeping, capacity, {.reached_bytes = best_bytes});
  Kept priced = KeepByWorth(keeping, capacity, [&](const Epoch& epoch, uint32_t) {
    float worth = Saves(keeping, epoch);
    uint32_t gap = epoch.first_gap;
    for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = keeping.Next(gap)) worth -= prices.gap[gap];
    return worth;
  });
  return Cost(keeping, priced).total() < best_bytes ? priced : best;
}

Kept KeepPrefix(const Keeping& keeping, uint64_t capacity) {
  std::vector<std::pair<uint32_t, TileIndex>> order;
  for (TileIndex tile = 0; tile < keeping.num_tiles(); ++tile) {
    if (keeping.first[tile] == keeping.first[tile + 1]) continue;
    order.emplace_back(keeping.uses[keeping.first[tile]].begin, tile);
  }
  std::sort(order.begin(), order.end());
  Kept kept(keeping.uses.size());
  RoomTree room(keeping, capacity);
  std::vector<Epoch> epochs;
  for (const auto& [begin, tile] : order) {
    epochs.clear();
    EpochsOf(keeping, tile, &epochs);
    for (const Epoch& epoch : epochs) {
      if (!KeepEpoch(keeping, epoch, room, kept)) return kept;
    }
  }
  return kept;
}

// Three rounds of a cache that evicts on demand what was used, or came, longest ago. What stays
// through a gap of the last round is kept.
Kept KeepByAge(const Keeping& keeping, uint64_t capacity, bool by_use) {
  constexpr uint64_t kAbsent = ~uint64_t{0};
  std::vector<uint32_t> begins(keeping.num_positions, ~0u), ends(keeping.num_positions + 1, ~0u);
  for (uint32_t u = 0; u < keeping.uses.size(); ++u) {
    begins[keeping.uses[u].begin] = u;
    if (keeping.uses[u].kind == Use::Kind::kHold) ends[keeping.uses[u].end] = u;
  }
  Kept kept(keeping.uses.size());
  std::vector<uint64_t> stamp(keeping.num_tiles(), kAbsent);
  std::vector<bool> in_use(keeping.num_tiles());
  std::set<std::pair<uint64_t, TileIndex>> idle;  // by stamp
  uint64_t used_bytes = 0, clock = 0;
  const auto leave = [&](TileIndex tile) {
    idle.erase({stamp[tile], tile});
    stamp[tile] = kAbsent;
    used_bytes -= keeping.size_bytes[tile];
  };
  const auto begin_use = [&](uint32_t u) {
    const TileIndex tile = keeping.uses[u].tile;
    const uint32_t before = u == keeping.first[tile] ? keeping.first[tile + 1] - 1 : u - 1;
    kept[before] = stamp[tile] != kAbsent && !keeping.uses[before].leaves;
    if (keeping.uses[u].kind == Use::Kind::kVoid) {
      if (stamp[tile] != kAbsent) leave(tile);
      return;
    }
    if (stamp[tile] != kAbsent) {
      idle.erase({stamp[tile], tile});
    } else {
      used_bytes += keeping.size_bytes[tile];
      while (used_bytes > capacity && !idle.empty()) leave(idle.begin()->second);
      stamp[tile] = ++clock;
    }
    if (by_use) stamp[tile] = ++clock;
    in_use[tile] = true;
  };
  for (int round = 0; round < 3; ++round) {
    for (uint32_t p = 0; p <= keeping.num_positions; ++p) {
      if (ends[p] != ~0u) {
        const TileIndex tile = keeping.uses[ends[p]].tile;
        in_use[tile] = false;
        idle.insert({stamp[tile], tile});
      }
      if (p < keeping.num_positions && begins[p] != ~0u) begin_use(begins[p]);
    }
  }
  return kept;
}

}  // namespace

std::string_view Name(Policy policy) { return kNames[static_cast<size_t>(policy)]; }

std::optional<Policy> ParsePolicy(std::string_view name) {
  for (int i = 0; i < kNumPolicies; ++i) {
    if (name == kNames[i]) return static_cast<Policy>(i);
  }
  return std::nullopt;
}

Kept Keep(Policy policy, const Keeping& keeping, uint64_t capacity) {
  switch (policy) {
    case Policy::kPlanned: return KeepPlanned(keeping, capacity);
    case Policy::kLru: return KeepByAge(keeping, capacity, /*by_use=*/true);
    case Policy::kFifo: return KeepByAge(keeping, capacity, /*by_use=*/false);
    case Policy::kPrefix: return KeepPrefix(keeping, capacity);
    case Policy::kNone: break;
  }
  return Kept(keeping.uses.size());
}

Kept KeepAll(const Keeping& keeping) {
  Kept kept(keeping.uses.size());
  for (uint32_t u = 0; u < keeping.uses.size(); ++u)
    kept[u] = keeping.uses[u].kind == Use::Kind::kHold;
  return kept;
}

}  // namespace spillway::plan
