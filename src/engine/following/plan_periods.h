// SPDX-License-Identifier: Apache-2.0
//
// What operations of each period have moved: a plan begins operations of the next period before
// the present one is over.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_PERIODS_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_PERIODS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "src/plan/plan.h"

namespace spillway::engine {

class PlanPeriods {
 public:
  // `num_moves`: operations of a period that move something.
  explicit PlanPeriods(uint64_t num_moves) : num_moves_(num_moves) {}
  void Restart() {
    periods_.clear();
    taken_ = 0;
  }

  // An operation that moves something has begun, or counts as over without.
  void Began(uint64_t period) { ++At(period).begun; }
  void Moved(uint64_t period, plan::Transfer link, uint64_t bytes) {
    At(period).moved[link] += bytes;
  }
  // What the next period that was begun to its end has moved, once; none before that.
  // `steps`: those that have ended.
  std::optional<plan::LinkBytes> Take(uint64_t steps) {
    if (num_moves_ == 0 ? taken_ == steps : periods_.empty() || periods_.front().begun < num_moves_)
      return std::nullopt;
    const plan::LinkBytes moved = At(taken_).moved;
    periods_.pop_front();
    ++taken_;
    return moved;
  }

 private:
  struct Period {
    plan::LinkBytes moved;
    uint64_t begun = 0;  // operations
  };
  // What is begun of a period that is taken already counts with the next.
  Period& At(uint64_t period) {
    const uint64_t index = period - std::min(period, taken_);
    if (index >= periods_.size()) periods_.resize(index + 1);
    return periods_[index];
  }

  const uint64_t num_moves_;
  std::deque<Period> periods_;  // from the first that is not taken yet
  uint64_t taken_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_PERIODS_H_
