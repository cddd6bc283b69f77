// SPDX-License-Identifier: Apache-2.0

#include "src/plan/keep.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "src/plan/prices.h"
#include "src/plan/room_tree.h"

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, kNumPolicies> kNames = {"planned", "lru", "fifo", "prefix",
                                                               "none"};

// Gaps that are kept together or not at all.
struct Candidate {
  Epoch epoch;
  uint32_t length = 0;
};

uint32_t GapLength(const Keeping& keeping, uint32_t gap) {
  const uint32_t begin = keeping.uses[gap].end, end = keeping.GapEnd(gap);
  return end >= begin ? end - begin : end + keeping.num_positions - begin;
}

// Sorts piece by piece, so that planning can stop between pieces.
template <typename T>
void Sort(const Keeping& keeping, std::vector<T>* values) {
  constexpr size_t kPiece = 1 << 15;
  const auto at = [&](size_t index) {
    return values->begin() + static_cast<std::ptrdiff_t>(std::min(index, values->size()));
  };
  for (size_t begin = 0; begin < values->size(); begin += kPiece) {
    if (keeping.stop) return;
    std::sort(at(begin), at(begin + kPiece));
  }
  for (size_t sorted = kPiece; sorted < values->size(); sorted *= 2) {
    for (size_t begin = 0; begin < values->size(); begin += 2 * sorted) {
      if (keeping.stop) return;
      std::inplace_merge(at(begin), at(begin + sorted), at(begin + 2 * sorted));
    }
  }
}

// Returns all whole epochs, and each gap of a dirty epoch that saves a read when kept alone.
std::vector<Candidate> FindCandidates(const Keeping& keeping) {
  const std::vector<Epoch> epochs = AllEpochs(keeping);
  std::vector<Candidate> candidates;
  candidates.reserve(epochs.size());
  for (const Epoch& epoch : epochs) {
    if (keeping.stop) break;
    candidates.push_back({epoch});
    if (!epoch.dirty || epoch.num_gaps == 1) continue;
    ForGaps(keeping, epoch, [&](uint32_t gap) {
      if (keeping.SavesRead(gap)) candidates.push_back({Epoch{gap, 1, false}});
    });
  }
  for (Candidate& candidate : candidates) {
    if (keeping.stop) break;
    ForGaps(keeping, candidate.epoch,
            [&](uint32_t gap) { candidate.length += GapLength(keeping, gap); });
  }
  return candidates;
}

bool KeepEpoch(const Keeping& keeping, const Epoch& epoch, RoomTree& room, Kept& kept) {
  absl::InlinedVector<uint32_t, 16> added;
  bool fits = true;
  ForGaps(keeping, epoch, [&](uint32_t gap) {
    if (!fits || kept[gap]) return;
    fits = room.Add(keeping.uses[gap].end, keeping.GapEnd(gap), keeping.UseBytes(gap));
    if (fits) added.push_back(gap);
  });
  for (const uint32_t gap : added) {
    kept[gap] = fits;
    if (!fits) room.Remove(keeping.uses[gap].end, keeping.GapEnd(gap), keeping.UseBytes(gap));
  }
  return fits;
}

// Searches for good sets of gaps to keep. Tries several orders of the candidates, and in each keeps
// every candidate that still fits.
class Planner {
 public:
  Planner(const Keeping& keeping, uint64_t capacity)
      : keeping_(keeping),
        capacity_(capacity),
        room_(keeping.use_bytes, capacity),
        candidates_(FindCandidates(keeping)) {
    const Kept nothing(keeping.uses.size());
    best_.emplace(Cost(keeping, nothing), nothing);
  }

  std::vector<Kept> Run() {
    const bool is_long = candidates_.size() > kMaxCandidatesTried;
    if (is_long) most_ways_ = 1;
    if (!is_long)
      Try([&](const Candidate& candidate) {
        return Saves(candidate.epoch) / static_cast<float>(candidate.length + 1);
      });
    // Which of the relaxation's optima the search finds, and how it rounds to whole gaps, varies
    // with the number of priced positions, so several numbers are tried.
    std::vector<float> shares;
    const auto share = [&](const Candidate& candidate) {
      float least = 1;
      ForGaps(keeping_, candidate.epoch,
              [&](uint32_t gap) { least = std::min(least, shares[gap]); });
      return least;
    };
    std::vector<float> best_shares;
    for (uint32_t times = MostTimes(keeping_); times >= kFewestTimes; times /= 2) {
      shares = KeptShares(keeping_, capacity_, times);
      if (Try(share) || best_shares.empty()) best_shares = shares;
      if (is_long || keeping_.stop) break;
    }
    shares = std::move(best_shares);
    // A gap that the relaxation keeps in part can be kept or left, so random orders are tried. The
    // seed is fixed.
    std::minstd_rand dice(1);
    const size_t tries = std::min(kMaxTries, kMaxCandidatesTried / (candidates_.size() + 1));
    for (size_t i = 0; i < tries && !keeping_.stop; ++i) {
      const float spread = 1.0F / static_cast<float>(1 + i % 4);
      Try([&](const Candidate& candidate) {
        return share(candidate) + spread * std::generate_canonical<float, 16>(dice);
      });
    }
    std::vector<Kept> ways;
    for (auto& [bytes, kept] : best_) {
      EaseTierBelow(&kept);
      ways.push_back(std::move(kept));
    }
    return ways;
  }

 private:
  // Fills the remaining room with tiles that stay until the tier below needs their bytes, and with
  // tiles that come as soon as a lease in the tier below has written them. The bytes move in any
  // case, but take room in the tier below for less time.
  void EaseTierBelow(Kept* kept) const {
    RoomTree room = room_;
    std::vector<std::pair<uint32_t, uint32_t>> gaps;
    for (uint32_t gap = 0; gap < kept->size() && !keeping_.stop; ++gap) {
      const Use& use = keeping_.uses[gap];
      if ((*kept)[gap]) {
        room.Add(use.end, keeping_.GapEnd(gap), keeping_.UseBytes(gap));
      } else if ((use.dirties && use.cleaned) || keeping_.MayComeEarly(gap)) {
        gaps.emplace_back(GapLength(keeping_, gap), gap);
      }
    }
    Sort(keeping_, &gaps);
    for (auto gap = gaps.rbegin(); gap != gaps.rend() && !keeping_.stop; ++gap)  // longest first
      KeepEpoch(keeping_, Epoch{gap->second, 1, false}, room, *kept);
  }

  static constexpr uint32_t kFewestTimes = 32;
  static constexpr size_t kMaxTries = 50;
  static constexpr size_t kMostWays = 4;
  static constexpr size_t kMaxCandidatesTried = 200'000;

  // A transfer costs a request, however few its bytes. So tiles that are small against a request
  // are kept before all others.
  static constexpr uint64_t kSmallBytes = 32 << 10;
  float First(const Candidate& candidate) const {
    return keeping_.UseBytes(candidate.epoch.first_gap) <= kSmallBytes ? 1e6F : 0.0F;
  }

  float Saves(const Epoch& epoch) const {
    float saves = epoch.dirty ? 1 : 0;
    ForGaps(keeping_, epoch, [&](uint32_t gap) { saves += keeping_.SavesRead(gap) ? 1 : 0; });
    return saves;
  }

  // Keeps candidates in order of falling worth. Of candidates of equal worth, the shorter comes
  // first, then the one of lower index. Returns whether the result is the best so far.
  template <typename Worth>
  bool Try(const Worth& worth) {
    struct Rank {
      float worth;
      uint32_t length, candidate;
      bool operator<(const Rank& other) const {
        if (worth != other.worth) return worth > other.worth;
        return std::pair(length, candidate) < std::pair(other.length, other.candidate);
      }
    };
    std::vector<Rank> order;
    order.reserve(candidates_.size());
    for (uint32_t i = 0; i < candidates_.size() && !keeping_.stop; ++i)
      order.push_back({worth(candidates_[i]) + First(candidates_[i]), candidates_[i].length, i});
    Sort(keeping_, &order);
    Kept kept(keeping_.uses.size());
    RoomTree room = room_;
    for (const Rank& rank : order) {
      if (keeping_.stop) break;
      KeepEpoch(keeping_, candidates_[rank.candidate].epoch, room, kept);
    }
    const uint64_t bytes = Cost(keeping_, kept);
    const bool is_best = bytes < best_.begin()->first;
    best_.try_emplace(bytes, std::move(kept));  // of ways of equal bytes, the first stays
    if (best_.size() > most_ways_) best_.erase(std::prev(best_.end()));
    return is_best;
  }

  const Keeping& keeping_;
  const uint64_t capacity_;
  const RoomTree room_;  // contains the uses alone
  std::vector<Candidate> candidates_;
  size_t most_ways_ = kMostWays;
  std::map<uint64_t, Kept> best_;  // by the bytes that they move
};

Kept KeepPrefix(const Keeping& keeping, uint64_t capacity) {
  std::vector<Epoch> epochs = AllEpochs(keeping);
  const auto first_use = [&](const Epoch& epoch) {
    return keeping.uses[keeping.first[keeping.uses[epoch.first_gap].tile]].begin;
  };
  std::ranges::stable_sort(epochs, {}, first_use);
  Kept kept(keeping.uses.size());
  RoomTree room(keeping.use_bytes, capacity);
  for (const Epoch& epoch : epochs) {
    if (!KeepEpoch(keeping, epoch, room, kept)) break;
  }
  return kept;
}

// Simulates three periods of a cache that evicts on demand the tile that was used, or came in,
// longest ago. Keeps the gaps through which a tile stayed in the last period.
Kept KeepByAge(const Keeping& keeping, uint64_t capacity, bool by_use) {
  constexpr uint64_t kAbsent = ~uint64_t{0};
  std::vector<uint32_t> begins(keeping.num_positions, ~0u), ends(keeping.num_positions + 1, ~0u);
  for (uint32_t u = 0; u < keeping.uses.size(); ++u) {
    if (keeping.has_reserved_frame(keeping.uses[u].tile)) continue;
    begins[keeping.uses[u].begin] = u;
    if (keeping.uses[u].kind == Use::Kind::kHold) ends[keeping.uses[u].end] = u;
  }
  Kept kept(keeping.uses.size());
  std::vector<uint64_t> stamp(keeping.num_tiles(), kAbsent);
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
  };
  for (int round = 0; round < 3; ++round) {
    for (uint32_t p = 0; p <= keeping.num_positions && !keeping.stop; ++p) {
      if (ends[p] != ~0u) {
        const TileIndex tile = keeping.uses[ends[p]].tile;
        idle.insert({stamp[tile], tile});
        if (keeping.uses[ends[p]].away) leave(tile);
      }
      if (p < keeping.num_positions && begins[p] != ~0u) begin_use(begins[p]);
    }
  }
  return kept;
}

}  // namespace

std::string_view Name(Policy policy) { return kNames[static_cast<size_t>(policy)]; }

std::vector<Kept> WaysToKeep(Policy policy, const Keeping& keeping, uint64_t capacity) {
  switch (policy) {
    case Policy::kPlanned: return Planner(keeping, capacity).Run();
    case Policy::kLru: return {KeepByAge(keeping, capacity, /*by_use=*/true)};
    case Policy::kFifo: return {KeepByAge(keeping, capacity, /*by_use=*/false)};
    case Policy::kPrefix: return {KeepPrefix(keeping, capacity)};
    case Policy::kNone: break;
  }
  return {Kept(keeping.uses.size())};
}

Kept KeepAll(const Keeping& keeping) {
  Kept kept(keeping.uses.size());
  for (uint32_t u = 0; u < keeping.uses.size(); ++u)
    kept[u] = keeping.uses[u].kind == Use::Kind::kHold;
  return kept;
}

}  // namespace spillway::plan
