// SPDX-License-Identifier: Apache-2.0
//
// Newton's method on the prices. The value to be maximized has a kink at all prices at which
// retaining a gap costs as much as leaving, and all tiles of a kind have their kinks at the same
// prices. Steps along the slope oscillate there. So the value is smoothed: the choice between
// retaining and leaving becomes a share, and the smoothing is weaker in each stage.

#include "src/plan/prices.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace spillway::plan {
namespace {

constexpr double kSharpest = 0.0012;
// If there are more gaps, the search samples about this many of them at random.
constexpr size_t kMaxGapsLookedAt = 40'000;

// The positions at which room has a price, called times: in each stretch of positions, the one at
// which uses fill the tier most. Room at the other positions costs nothing. That drops constraints,
// so the bound stays valid.
struct Times {
  uint32_t stretch = 1;      // positions
  std::vector<uint32_t> at;  // positions, ascending, one of each stretch
  std::vector<double> room;  // bytes that uses leave free there

  size_t size() const { return at.size(); }
  // Returns the index of the first time at or after a position.
  uint32_t Of(uint32_t position) const {
    const uint32_t time = position / stretch;
    if (time >= at.size()) return static_cast<uint32_t>(at.size());
    return at[time] >= position ? time : time + 1;
  }
};

Times ChooseTimes(const Retention& retention, uint64_t capacity, uint32_t max_times) {
  const std::vector<uint64_t>& use_bytes = retention.use_bytes;
  Times times;
  times.stretch = static_cast<uint32_t>((use_bytes.size() + max_times - 1) / max_times);
  for (size_t begin = 0; begin < use_bytes.size(); begin += times.stretch) {
    const size_t end = std::min<size_t>(use_bytes.size(), begin + times.stretch);
    const auto most = std::max_element(use_bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                                       use_bytes.begin() + static_cast<std::ptrdiff_t>(end));
    times.at.push_back(static_cast<uint32_t>(most - use_bytes.begin()));
    times.room.push_back(static_cast<double>(capacity - std::min(capacity, *most)));
  }
  return times;
}

// A gap in terms of times. It contains the times from `first` up to, not including, `end`. A hollow
// gap crosses the seam and contains all times but those.
struct PricedGap {
  uint32_t use = 0;
  uint32_t first = 0, end = 0;
  bool hollow = false;
  bool saves_read = false;
};

// Visits the gaps of an epoch in order.
template <typename Visit>
void ForPricedGaps(const Retention& retention, const Times& times, const Epoch& epoch,
                   const Visit& visit) {
  ForGaps(retention, epoch, [&](uint32_t u) {
    const uint32_t begin = retention.uses[u].end, end = retention.GapEnd(u);
    PricedGap gap{u, times.Of(begin), times.Of(end), end < begin, retention.SavesRead(u)};
    if (gap.hollow) std::swap(gap.first, gap.end);
    visit(gap);
  });
}

// The gaps of some of a tier's epochs, stored for the search, which reads them many times.
struct PricedGaps {
  struct Group {
    double bytes = 0;
    uint32_t first = 0;  // index into `gaps`
    uint32_t end = 0;
    bool dirty = false;
  };
  std::vector<Group> groups;
  std::vector<PricedGap> gaps;
};

// Collects the gaps of the epochs. Multiplies the bytes of each epoch by `weight`.
PricedGaps GapsOf(const Retention& retention, const std::vector<Epoch>& epochs, const Times& times,
                  double weight) {
  PricedGaps priced;
  for (const Epoch& epoch : epochs) {
    const auto first = static_cast<uint32_t>(priced.gaps.size());
    ForPricedGaps(retention, times, epoch,
                  [&](const PricedGap& gap) { priced.gaps.push_back(gap); });
    const auto bytes = static_cast<double>(retention.UseBytes(epoch.first_gap));
    priced.groups.push_back(
        {weight * bytes, first, static_cast<uint32_t>(priced.gaps.size()), epoch.dirty});
  }
  return priced;
}

// A square matrix, by rows.
class Matrix {
 public:
  explicit Matrix(size_t size) : size_(size), values_(size * size) {}
  double& at(size_t i, size_t j) { return values_[i * size_ + j]; }

  // Entry (i, j) is a sum over the intervals from i up to j. Replaces it, for j >= i, by the sum
  // over all intervals that contain both i and j.
  void SumOverHolders() {
    for (size_t i = 1; i < size_; ++i) {
      for (size_t j = 0; j < size_; ++j) at(i, j) += at(i - 1, j);
    }
    for (size_t i = 0; i < size_; ++i) {
      double sum = 0;
      for (size_t j = size_; j-- > 0;) sum = std::exchange(at(i, j), sum) + sum;
    }
  }

 private:
  size_t size_;
  std::vector<double> values_;
};

// Solves `a` x = b for a symmetric positive definite matrix, given by its upper half.
std::vector<double> Solve(Matrix a, size_t size, std::vector<double> b) {
  for (size_t k = 0; k < size; ++k) {
    const double pivot = a.at(k, k);
    for (size_t i = k + 1; i < size; ++i) {
      const double factor = a.at(k, i) / pivot;
      if (factor == 0) continue;
      for (size_t j = i; j < size; ++j) a.at(i, j) -= factor * a.at(k, j);
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = size; k-- > 0;) {
    for (size_t j = k + 1; j < size; ++j) b[k] -= a.at(k, j) * b[j];
    b[k] /= a.at(k, k);
  }
  return b;
}

// Computes the smoothed minimum of two costs, and the share of the first.
struct Softened {
  double softness;
  double Least(double a, double b, double* share) const {
    const double away = std::clamp((a - b) / softness, -40.0, 40.0);
    *share = 1 / (1 + std::exp(away));
    return std::min(a, b) - softness * std::log1p(std::exp(-std::abs(away)));
  }
};

std::vector<double> Sums(const std::vector<double>& price) {
  std::vector<double> sum(price.size() + 1);
  std::partial_sum(price.begin(), price.end(), sum.begin() + 1);
  return sum;
}

// Returns the sum of the prices in a gap.
double CostOf(const PricedGap& gap, const std::vector<double>& sum) {
  const double inside = sum[gap.end] - sum[gap.first];
  return gap.hollow ? sum.back() - inside : inside;
}

// The search for prices. Bytes are scaled so that those of all epochs add up to 1.
class Search {
 public:
  Search(const PricedGaps& priced, const Times& times) : priced_(priced), num_times_(times.size()) {
    double all = 0;
    for (const PricedGaps::Group& group : priced.groups) all += group.bytes;
    scale_ = 1 / std::max(all, 1.0);
    // Where uses fill the tier, the room is taken as a small value: prices would otherwise grow
    // without limit.
    for (const double room : times.room) room_.push_back(std::max(room * scale_, 1e-4));
    price_.assign(num_times_, 1.0 / static_cast<double>(num_times_));
  }

  std::vector<double> Run(Stop stop) {
    for (double softness = 0.3; softness >= kSharpest && !stop; softness /= 2.5) {
      for (int round = 0; round < kRoundsAStage && Improve(softness); ++round) {
      }
    }
    return price_;
  }

 private:
  static constexpr int kRoundsAStage = 8;

  // Takes one step of Newton's method. Returns false if it no longer improves the value.
  bool Improve(double softness) {
    Evaluate(price_, softness, /*curves=*/true);
    const double value = value_;
    Matrix curve = Curvature();
    const double fence = Fence(softness);
    for (size_t t = 0; t < num_times_; ++t)
      curve.at(t, t) += fence / (price_[t] * price_[t]) + 1e-12;
    const std::vector<double> way = Solve(std::move(curve), num_times_, slope_);
    double gain = 0, length = 1;
    for (size_t t = 0; t < num_times_; ++t) {
      gain += slope_[t] * way[t];
      if (way[t] < 0) length = std::min(length, -0.95 * price_[t] / way[t]);
    }
    if (gain < 1e-3 * softness * softness) return false;
    std::vector<double> next(num_times_);
    for (int tries = 0; tries < 12; ++tries, length /= 3) {
      for (size_t t = 0; t < num_times_; ++t) next[t] = price_[t] + length * way[t];
      Evaluate(next, softness, /*curves=*/false);
      if (value_ < value + 0.1 * length * gain) continue;
      price_.swap(next);
      return true;
    }
    return false;
  }

  // Returns the weight of the barrier that keeps prices above zero.
  double Fence(double softness) const { return 0.1 * softness / static_cast<double>(num_times_); }

  void Evaluate(const std::vector<double>& price, double softness, bool curves) {
    const std::vector<double> sum = Sums(price);
    std::vector<double> fill(num_times_ + 1);
    if (curves) plain_ = hollow_ = Matrix(num_times_ + 1);
    const Softened soft{softness};
    value_ = 0;
    for (const PricedGaps::Group& group : priced_.groups) {
      const double bytes = group.bytes * scale_;
      double all = 0, some = group.dirty ? 1 : 0;
      gap_share_.clear();
      for (uint32_t g = group.first; g < group.end; ++g) {
        const double cost = CostOf(priced_.gaps[g], sum);
        all += cost;
        gap_share_.push_back(0);
        if (priced_.gaps[g].saves_read) some += soft.Least(cost, 1, &gap_share_.back());
      }
      double whole = 0;
      value_ += bytes * (group.dirty ? soft.Least(all, some, &whole) : some);
      const auto num_gaps = static_cast<double>(group.end - group.first);
      for (uint32_t g = group.first; g < group.end; ++g) {
        const PricedGap& gap = priced_.gaps[g];
        const double alone = gap_share_[g - group.first];
        const double retained = bytes * (whole + (1 - whole) * alone);
        if (gap.hollow) fill[0] += retained;
        fill[gap.first] += gap.hollow ? -retained : retained;
        fill[gap.end] += gap.hollow ? retained : -retained;
        if (!curves) continue;
        // For n gaps that are retained together, n times the sum of their squares is an upper bound
        // of the square of their sum.
        const double curve = num_gaps * whole * (1 - whole) * (1 - alone) * (1 - alone) +
                             (1 - whole) * alone * (1 - alone);
        (gap.hollow ? hollow_ : plain_).at(gap.first, gap.end) += bytes * curve / softness;
      }
    }
    const double fence = Fence(softness);
    slope_.assign(num_times_, 0);
    double filled = 0;
    for (size_t t = 0; t < num_times_; ++t) {
      filled += fill[t];
      slope_[t] = filled - room_[t] + fence / price[t];
      value_ += fence * std::log(price[t]) - price[t] * room_[t];
    }
  }

  // Returns how much the slope at one time falls with the price at another. Fills the upper half.
  Matrix Curvature() {
    double hollow = 0;
    for (size_t i = 0; i <= num_times_; ++i) {
      for (size_t j = 0; j <= num_times_; ++j) hollow += hollow_.at(i, j);
    }
    plain_.SumOverHolders();
    hollow_.SumOverHolders();
    Matrix curve(num_times_);
    for (size_t i = 0; i < num_times_; ++i) {
      for (size_t j = i; j < num_times_; ++j) {
        curve.at(i, j) =
            plain_.at(i, j) + hollow - hollow_.at(i, i) - hollow_.at(j, j) + hollow_.at(i, j);
      }
    }
    return curve;
  }

  const PricedGaps& priced_;
  const size_t num_times_;
  double scale_ = 1;
  std::vector<double> room_, price_;
  // Results of the last evaluation.
  double value_ = 0;
  std::vector<double> slope_;
  Matrix plain_{0}, hollow_{0};  // curvature by a gap's first and end
  std::vector<double>
      gap_share_;  // by gap of one epoch: its share if the epoch is not retained whole
};

// The prices that the search found, their times, and all epochs of the tier.
struct Found {
  Times times;
  std::vector<Epoch> epochs;
  std::vector<double> price;
};

Found FindPrices(const Retention& retention, uint64_t capacity, uint32_t max_times, Stop stop) {
  Found found{ChooseTimes(retention, capacity, max_times), AllEpochs(retention), {}};
  size_t num_gaps = 0;
  for (const Epoch& epoch : found.epochs) num_gaps += epoch.num_gaps;
  const double share =
      std::min(1.0, static_cast<double>(kMaxGapsLookedAt) / static_cast<double>(num_gaps));
  std::minstd_rand dice(1);
  std::vector<Epoch> some;
  for (const Epoch& epoch : found.epochs) {
    if (share >= 1 || std::generate_canonical<float, 16>(dice) < share) some.push_back(epoch);
  }
  found.price = Search(GapsOf(retention, some, found.times, 1 / share), found.times).Run(stop);
  return found;
}

}  // namespace

uint32_t MostTimes(const Retention& retention) {
  constexpr size_t kTimesAGap = 48, kGapsATime = 32, kLeast = 64, kMost = 256;
  const size_t num_gaps = retention.uses.size(),
               num_tiles = std::max<size_t>(retention.num_tiles(), 1);
  const size_t times = std::min(kTimesAGap * num_gaps / num_tiles, num_gaps / kGapsATime);
  return static_cast<uint32_t>(std::clamp(times, kLeast, kMost));
}

double LeastBytes(const Retention& retention, uint64_t capacity, uint32_t most_times) {
  const uint32_t times = std::min(most_times, MostTimes(retention));
  const Found found = FindPrices(retention, capacity, times, {});
  const std::vector<double> sum = Sums(found.price);
  double least = 0;
  for (const Epoch& epoch : found.epochs) {
    double all = 0, some = epoch.dirty ? 1 : 0;
    ForPricedGaps(retention, found.times, epoch, [&](const PricedGap& gap) {
      const double cost = CostOf(gap, sum);
      all += cost;
      if (gap.saves_read) some += std::min(cost, 1.0);
    });
    const auto bytes = static_cast<double>(retention.UseBytes(epoch.first_gap));
    least += bytes * (epoch.dirty ? std::min(all, some) : some);
  }
  for (size_t t = 0; t < found.times.size(); ++t) least -= found.price[t] * found.times.room[t];
  // Adds the bytes that move even if every gap is retained that saves a transfer.
  Retained all(retention.uses.size());
  for (size_t u = 0; u < all.size(); ++u) all[u] = !retention.uses[u].leaves;
  return static_cast<double>(Cost(retention, all)) + std::max(0.0, least);
}

std::vector<float> KeptShares(const Retention& retention, uint64_t capacity, uint32_t max_times,
                              Stop stop) {
  const Found found = FindPrices(retention, capacity, max_times, stop);
  const std::vector<double> sum = Sums(found.price);
  const Softened soft{kSharpest};
  std::vector<float> shares(retention.uses.size());
  for (const Epoch& epoch : found.epochs) {
    double all = 0, some = 1, whole = 0;
    ForPricedGaps(retention, found.times, epoch, [&](const PricedGap& gap) {
      const double cost = CostOf(gap, sum);
      double alone = 0;
      all += cost;
      if (gap.saves_read) some += soft.Least(cost, 1, &alone);
      shares[gap.use] = static_cast<float>(alone);
    });
    if (!epoch.dirty) continue;
    soft.Least(all, some, &whole);
    ForGaps(retention, epoch, [&](uint32_t gap) {
      shares[gap] = static_cast<float>(whole + (1 - whole) * static_cast<double>(shares[gap]));
    });
  }
  return shares;
}

}  // namespace spillway::plan
