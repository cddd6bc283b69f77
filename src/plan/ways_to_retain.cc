// SPDX-License-Identifier: Apache-2.0

#include "src/plan/ways_to_retain.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "src/plan/prices.h"
#include "src/plan/room_tree.h"

namespace spillway::plan {
namespace {

// Gaps that are retained together or not at all.
struct Candidate {
  Epoch epoch;
  uint32_t length = 0;
};

uint32_t GapLength(const Retention& retention, uint32_t gap) {
  const uint32_t begin = retention.uses[gap].end, end = retention.GapEnd(gap);
  return end >= begin ? end - begin : end + retention.num_positions - begin;
}

// Returns all whole epochs, and each gap of a dirty epoch that saves a read when retained alone.
std::vector<Candidate> FindCandidates(const Retention& retention) {
  const std::vector<Epoch> epochs = AllEpochs(retention);
  std::vector<Candidate> candidates;
  candidates.reserve(epochs.size());
  for (const Epoch& epoch : epochs) {
    candidates.push_back({epoch});
    if (!epoch.dirty || epoch.num_gaps == 1) continue;
    ForGaps(retention, epoch, [&](uint32_t gap) {
      if (retention.SavesRead(gap)) candidates.push_back({Epoch{gap, 1, false}});
    });
  }
  for (Candidate& candidate : candidates) {
    ForGaps(retention, candidate.epoch,
            [&](uint32_t gap) { candidate.length += GapLength(retention, gap); });
  }
  return candidates;
}

bool RetainEpoch(const Retention& retention, const Epoch& epoch, RoomTree& room,
                 Retained& retained) {
  absl::InlinedVector<uint32_t, 16> added;
  bool fits = true;
  ForGaps(retention, epoch, [&](uint32_t gap) {
    if (!fits || retained[gap]) return;
    fits = room.Add(retention.uses[gap].end, retention.GapEnd(gap), retention.UseBytes(gap));
    if (fits) added.push_back(gap);
  });
  for (const uint32_t gap : added) {
    retained[gap] = fits;
    if (!fits) room.Remove(retention.uses[gap].end, retention.GapEnd(gap), retention.UseBytes(gap));
  }
  return fits;
}

// Searches for good sets of gaps to retain. Tries several orders of the candidates, and in each
// retains every candidate that still fits.
class Planner {
 public:
  Planner(const Retention& retention, uint64_t capacity, Stop stop)
      : retention_(retention),
        capacity_(capacity),
        stop_(stop),
        room_(retention.use_bytes, capacity),
        candidates_(FindCandidates(retention)) {
    const Retained nothing(retention.uses.size());
    best_.emplace(Cost(retention, nothing), nothing);
  }

  // Takes few priced positions, and tries no other order.
  std::vector<Retained> RunOnce() {
    most_ways_ = 1;
    const std::vector<float> shares = KeptShares(retention_, capacity_, kFewestTimes, stop_);
    Try([&](const Candidate& candidate) { return LeastShare(candidate, shares); });
    return Ways();
  }

  std::vector<Retained> Run() {
    const bool is_long = candidates_.size() > kMaxCandidatesTried;
    if (is_long) most_ways_ = 1;
    if (!is_long)
      Try([&](const Candidate& candidate) {
        return Saves(candidate.epoch) / static_cast<float>(candidate.length + 1);
      });
    // Which of the relaxation's optima the search finds, and how it rounds to whole gaps, varies
    // with the number of priced positions, so several numbers are tried.
    std::vector<float> shares;
    const auto share = [&](const Candidate& candidate) { return LeastShare(candidate, shares); };
    std::vector<float> best_shares;
    for (uint32_t times = MostTimes(retention_); times >= kFewestTimes; times /= 2) {
      shares = KeptShares(retention_, capacity_, times, stop_);
      if (Try(share) || best_shares.empty()) best_shares = shares;
      if (is_long || stop_) break;
    }
    shares = std::move(best_shares);
    // A gap that the relaxation retains in part can be retained or left, so random orders are
    // tried. The seed is fixed.
    std::minstd_rand dice(1);
    const size_t tries = std::min(kMaxTries, kMaxCandidatesTried / (candidates_.size() + 1));
    for (size_t i = 0; i < tries && !stop_; ++i) {
      const float spread = 1.0F / static_cast<float>(1 + i % 4);
      Try([&](const Candidate& candidate) {
        return share(candidate) + spread * std::generate_canonical<float, 16>(dice);
      });
    }
    return Ways();
  }

 private:
  float LeastShare(const Candidate& candidate, const std::vector<float>& shares) const {
    float least = 1;
    ForGaps(retention_, candidate.epoch,
            [&](uint32_t gap) { least = std::min(least, shares[gap]); });
    return least;
  }

  std::vector<Retained> Ways() {
    std::vector<Retained> ways;
    for (auto& [bytes, retained] : best_) {
      if (stop_) break;
      EaseTierBelow(&retained);
      ways.push_back(std::move(retained));
    }
    return ways;
  }

  // Fills the remaining room with tiles that stay until the tier below needs their bytes, and with
  // tiles that come as soon as a lease in the tier below has written them. The bytes move in any
  // case, but take room in the tier below for less time.
  void EaseTierBelow(Retained* retained) const {
    RoomTree room = room_;
    std::vector<std::pair<uint32_t, uint32_t>> gaps;
    for (uint32_t gap = 0; gap < retained->size(); ++gap) {
      const Use& use = retention_.uses[gap];
      if ((*retained)[gap]) {
        room.Add(use.end, retention_.GapEnd(gap), retention_.UseBytes(gap));
      } else if ((use.dirties && use.cleaned) || retention_.MayComeEarly(gap)) {
        gaps.emplace_back(GapLength(retention_, gap), gap);
      }
    }
    std::sort(gaps.begin(), gaps.end());
    for (auto gap = gaps.rbegin(); gap != gaps.rend(); ++gap)  // longest first
      RetainEpoch(retention_, Epoch{gap->second, 1, false}, room, *retained);
  }

  static constexpr uint32_t kFewestTimes = 32;
  static constexpr size_t kMaxTries = 50;
  static constexpr size_t kMostWays = 4;
  static constexpr size_t kMaxCandidatesTried = 200'000;

  // A transfer costs a request, however few its bytes. So tiles that are small against a request
  // are retained before all others.
  static constexpr uint64_t kSmallBytes = 32 << 10;
  float First(const Candidate& candidate) const {
    return retention_.UseBytes(candidate.epoch.first_gap) <= kSmallBytes ? 1e6F : 0.0F;
  }

  float Saves(const Epoch& epoch) const {
    float saves = epoch.dirty ? 1 : 0;
    ForGaps(retention_, epoch, [&](uint32_t gap) { saves += retention_.SavesRead(gap) ? 1 : 0; });
    return saves;
  }

  // Retains candidates in order of falling worth. Of candidates of equal worth, the shorter comes
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
    for (uint32_t i = 0; i < candidates_.size(); ++i)
      order.push_back({worth(candidates_[i]) + First(candidates_[i]), candidates_[i].length, i});
    std::sort(order.begin(), order.end());
    Retained retained(retention_.uses.size());
    RoomTree room = room_;
    for (const Rank& rank : order) {
      RetainEpoch(retention_, candidates_[rank.candidate].epoch, room, retained);
    }
    const uint64_t bytes = Cost(retention_, retained);
    const bool is_best = bytes < best_.begin()->first;
    best_.try_emplace(bytes, std::move(retained));  // of ways of equal bytes, the first stays
    if (best_.size() > most_ways_) best_.erase(std::prev(best_.end()));
    return is_best;
  }

  const Retention& retention_;
  const uint64_t capacity_;
  const Stop stop_;
  const RoomTree room_;  // contains the uses alone
  std::vector<Candidate> candidates_;
  size_t most_ways_ = kMostWays;
  std::map<uint64_t, Retained> best_;  // by the bytes that they move
};

}  // namespace

std::vector<Retained> WaysToRetain(const Retention& retention, uint64_t capacity, Stop stop) {
  return Planner(retention, capacity, stop).Run();
}

std::vector<Retained> OneWayToRetain(const Retention& retention, uint64_t capacity, Stop stop) {
  return Planner(retention, capacity, stop).RunOnce();
}

Retained RetainAll(const Retention& retention) {
  Retained retained(retention.uses.size());
  for (uint32_t u = 0; u < retention.uses.size(); ++u)
    retained[u] = retention.uses[u].kind == Use::Kind::kHold;
  return retained;
}

}  // namespace spillway::plan
