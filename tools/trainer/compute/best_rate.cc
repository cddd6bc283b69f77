// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/best_rate.h"

#include <algorithm>
#include <functional>

namespace spillway::trainer {

double BestRate(double operations, const std::function<double()>& time_round) {
  constexpr int kLeastRounds = 8;
  constexpr int kSettledRounds = 5;
  constexpr double kGain = 1.05;
  constexpr double kMostSeconds = 0.5;
  constexpr double kLeastSeconds = 1e-9;  // a round may be shorter than the clock's resolution
  double spent = time_round();            // starts threads, and BLAS allocates its buffers
  double best = 0;
  double settled_at = 0;  // the rate that later rounds would have to exceed by kGain
  int settled_rounds = 0;
  for (int round = 0; round < kLeastRounds || settled_rounds < kSettledRounds; ++round) {
    const double seconds = std::max(time_round(), kLeastSeconds);
    const double rate = operations / seconds;
    best = std::max(best, rate);
    ++settled_rounds;
    if (rate > kGain * settled_at) {
      settled_at = rate;
      settled_rounds = 0;
    }
    spent += seconds;
    if (spent >= kMostSeconds) break;
  }
  return best;
}

}  // namespace spillway::trainer
