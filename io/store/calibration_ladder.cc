// SPDX-License-Identifier: Apache-2.0

#include "io/store/calibration_ladder.h"

#include <algorithm>
#include <utility>

namespace spillway::io {
namespace {

constexpr double kGoodEnough = 0.97;  // of the best rate
constexpr double kClose = 0.7;        // of the best rate; below it, a rate is clearly slower

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

size_t SmallestGoodEnough(std::span<const double> rates) {
  const double enough = kGoodEnough * *std::max_element(rates.begin(), rates.end());
  const auto is_enough = [enough](double rate) { return rate >= enough; };
  return static_cast<size_t>(std::find_if(rates.begin(), rates.end(), is_enough) - rates.begin());
}

std::vector<double> Smoothed(std::span<const double> rates) {
  std::vector<double> smoothed;
  for (size_t i = 0; i < rates.size(); ++i) {
    std::vector<double> near;
    for (size_t j = i - std::min<size_t>(i, 1); j < std::min(i + 2, rates.size()); ++j) {
      if (rates[j] > 0) near.push_back(rates[j]);
    }
    smoothed.push_back(rates[i] > 0 ? Median(std::move(near)) : 0);
  }
  return smoothed;
}

std::vector<double> RunRates(std::span<const double> rates, std::span<const uint64_t> queue_bytes) {
  std::vector<double> expected;
  for (size_t i = 0; i < rates.size(); ++i) {
    const auto bytes = static_cast<double>(queue_bytes[i]);
    const bool is_too_long = i > 0 && bytes > kLongestQueueSeconds * rates[i];
    expected.push_back(is_too_long ? 0 : rates[i] * bytes / (bytes + rates[i] * kGapSeconds));
  }
  return expected;
}

std::vector<double> LeastShares(std::span<const std::vector<double>> rates) {
  std::vector<double> shares(rates[0].size(), 1);
  for (const std::vector<double>& of_kind : rates) {
    const double best = *std::max_element(of_kind.begin(), of_kind.end());
    if (best == 0) continue;
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = std::min(shares[i], of_kind[i] / best);
  }
  return shares;
}

size_t DefaultOrBest(std::span<const double> rates, size_t by_default) {
  const auto best = std::max_element(rates.begin(), rates.end());
  if (rates[by_default] == 0 || rates[by_default] >= kClose * *best) return by_default;
  return static_cast<size_t>(best - rates.begin());
}

std::vector<int> MixedWriteDepths(int most) {
  std::vector<int> depths;
  for (int writes = 1; writes < most; writes *= 4) depths.push_back(writes);
  depths.push_back(most);
  return depths;
}

}  // namespace spillway::io
