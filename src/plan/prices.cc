// SPDX-License-Identifier: Apache-2.0
//
// Subgradient ascent on the prices, with Polyak's steps.

#include "src/plan/prices.h"

#include <algorithm>
#include <utility>

namespace spillway::plan {
namespace {

// The times that have a price: of each stretch of positions the one at which uses fill the tier
// most. The others cost nothing, which leaves constraints away and so keeps the bound true.
struct Times {
  uint32_t stretch = 1;           // positions
  std::vector<uint32_t> at;       // positions, ascending, one of each stretch
  std::vector<double> use_bytes;  // in the tier then, without what is kept
};

// `use_bytes` by position.
Times ChooseTimes(const std::vector<uint64_t>& use_bytes, uint32_t max_times) {
  Times times;
  times.stretch = static_cast<uint32_t>((use_bytes.size() + max_times - 1) / max_times);
  for (uint32_t begin = 0; begin < use_bytes.size(); begin += times.stretch) {
    const auto first = use_bytes.begin() + begin;
    const auto end = use_bytes.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(
                                             use_bytes.size(), size_t{begin} + times.stretch));
    const auto most = std::max_element(first, end);
    times.at.push_back(static_cast<uint32_t>(most - use_bytes.begin()));
    times.use_bytes.push_back(static_cast<double>(*most));
  }
  return times;
}

constexpr size_t kMaxGapsLookedAt = 3'000'000;  // on each level

class Search {
 public:
  explicit Search(const Keeping& keeping, uint64_t capacity)
      : keeping_(keeping),
        capacity_(static_cast<double>(capacity)),
        use_bytes_(UseBytesByPosition(keeping)),
        share_(keeping.uses.size()) {
    for (TileIndex tile = 0; tile < keeping.num_tiles(); ++tile) EpochsOf(keeping, tile, &epochs_);
    for (uint32_t u = 0; u < keeping.uses.size(); ++u) {
      const Use& use = keeping.uses[u];
      const auto bytes = static_cast<double>(keeping.UseBytes(u));
      if (use.leaves && keeping.SavesRead(u)) constant_ += bytes;
      if (use.forced_write) constant_ += bytes;
    }
  }

  // Few times first: the fewer, the sooner their prices are found; then more, which begin with the
  // prices of those before.
  Prices Run(double reached, const PriceOptions& options) {
    Prices best;
    for (uint32_t num_times = 8;; num_times *= 4) {
      SetTimes(std::min(num_times, options.max_times));
      const double value = Ascend(std::max(reached, best.bound_bytes), options.rounds);
      if (value > best.bound_bytes) best.bound_bytes = value;
      if (num_times >= std::min(options.max_times, keeping_.num_positions)) break;
    }
    best.share = std::move(share_);
    return best;
  }

 private:
  // Prices go to the new times nearest to their old.
  void SetTimes(uint32_t num_times) {
    const Times before = std::exchange(times_, ChooseTimes(use_bytes_, num_times));
    const std::vector<double> old_price = std::exchange(price_, {});
    price_.assign(times_.at.size(), 0);
    for (size_t t = 0; t < old_price.size(); ++t) {
      const uint32_t at = TimeOf(before.at[t]);
      price_[std::min<size_t>(at, price_.size() - 1)] += old_price[t];
    }
    room_.clear();
    for (const double use_bytes : times_.use_bytes) room_.push_back(capacity_ - use_bytes);
    first_time_.resize(keeping_.uses.size());
    end_time_.resize(keeping_.uses.size());
    for (uint32_t u = 0; u < keeping_.uses.size(); ++u) {
      first_time_[u] = TimeOf(keeping_.uses[u].end);
      end_time_[u] = TimeOf(keeping_.uses[keeping_.Next(u)].begin);
    }
  }

  // The best value found; leaves its prices.
  double Ascend(double reached, int rounds) {
    double best = 0;
    std::vector<double> best_price = price_;
    double pace = 1;
    int since_best = 0;
    for (int round = 0; round < rounds; ++round) {
      const double value = Evaluate();
      if (round == 0 || value > best) {
        best = value;
        best_price = price_;
        since_best = 0;
      } else if (++since_best == 5) {
        pace /= 2;
        since_best = 0;
        price_ = best_price;
        Evaluate();
      }
      if (!Step(pace * (std::max(reached, best * 1.0001) - value))) break;
    }
    price_ = best_price;
    return best;
  }

  // The first time at or after a position.
  uint32_t TimeOf(uint32_t position) const {
    const uint32_t time = position / times_.stretch;
    if (time >= times_.at.size()) return static_cast<uint32_t>(times_.at.size());
    return times_.at[time] >= position ? time : time + 1;
  }

  void Accumulate() {
    sum_.assign(price_.size() + 1, 0);
    for (size_t t = 0; t < price_.size(); ++t) sum_[t + 1] = sum_[t] + price_[t];
  }

  // A gap that ends at or before its begin goes over the seam.
  bool Wraps(uint32_t gap) const {
    return keeping_.uses[keeping_.Next(gap)].begin < keeping_.uses[gap].end;
  }
  double PriceOf(uint32_t gap) const {
    const double straight = sum_[end_time_[gap]] - sum_[first_time_[gap]];
    return Wraps(gap) ? straight + sum_.back() : straight;
  }
  void Fill(uint32_t gap, double bytes) {
    excess_[first_time_[gap]] += bytes;
    excess_[end_time_[gap]] -= bytes;
    if (Wraps(gap)) excess_[0] += bytes;
  }

  // The least that keeping costs at these prices; leaves in excess_ by how much it overfills.
  double Evaluate() {
    Accumulate();
    excess_.assign(price_.size() + 1, 0);
    double value = constant_;
    for (const Epoch& epoch : epochs_) {
      const auto bytes = static_cast<double>(keeping_.UseBytes(epoch.first_gap));
      double all = 0, some = epoch.dirty ? 1 : 0;
      ForEachGap(epoch, [&](uint32_t gap, double price, double saves) {
        (void)gap;
        all += price;
        some += std::min(price, saves);
      });
      const bool keep_all = epoch.dirty && all < some;
      value += bytes * (keep_all ? all : some);
      ForEachGap(epoch, [&](uint32_t gap, double price, double saves) {
        const bool keep = keep_all || price < saves;
        if (keep) Fill(gap, bytes);
        share_[gap] += kShareStep * ((keep ? 1.0F : 0.0F) - share_[gap]);
      });
    }
    double filled = 0;
    for (size_t t = 0; t < price_.size(); ++t) {
      filled += excess_[t];
      excess_[t] = filled - room_[t];
      value -= price_[t] * room_[t];
    }
    return value;
  }

  template <typename Visit>
  void ForEachGap(const Epoch& epoch, const Visit& visit) const {
    uint32_t gap = epoch.first_gap;
    for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = keeping_.Next(gap))
      visit(gap, PriceOf(gap), keeping_.SavesRead(gap) ? 1.0 : 0.0);
  }

  // False at an optimum.
  bool Step(double distance) {
    double norm = 0;
    for (size_t t = 0; t < price_.size(); ++t) {
      const bool stays = price_[t] == 0 && excess_[t] < 0;
      if (!stays) norm += excess_[t] * excess_[t];
    }
    if (norm == 0 || distance <= 0) return false;
    for (size_t t = 0; t < price_.size(); ++t)
      price_[t] = std::max(0.0, price_[t] + distance / norm * excess_[t]);
    return true;
  }

  static constexpr float kShareStep = 0.02F;

  const Keeping& keeping_;
  const double capacity_;
  const std::vector<uint64_t> use_bytes_;  // by position, without what is kept
  Times times_;
  std::vector<double> room_;  // by time: the capacity that uses leave
  std::vector<uint32_t> first_time_, end_time_;
  std::vector<Epoch> epochs_;
  double constant_ = 0;  // bytes that move whatever is kept
  std::vector<double> price_, sum_, excess_;
  std::vector<float> share_;
};

}  // namespace

Prices FindPrices(const Keeping& keeping, uint64_t capacity, PriceOptions options) {
  // A round looks at every gap: long traces get fewer.
  const auto affordable = static_cast<int>(kMaxGapsLookedAt / (keeping.uses.size() + 1));
  options.rounds = std::min(options.rounds, std::max(8, affordable));
  return Search(keeping, capacity).Run(static_cast<double>(options.reached_bytes), options);
}

}  // namespace spillway::plan
