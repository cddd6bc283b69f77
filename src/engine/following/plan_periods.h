// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes that the operations of each period have moved. Periods are counted apart because
// a plan begins operations of the next period before the present one is over.

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
  // `num_moves`: the number of operations of a period that a link carries.
  explicit PlanPeriods(uint64_t num_moves) : num_moves_(num_moves) {}
  void Restart() {
    periods_.clear();
    taken_ = 0;
  }

  // Records that an operation with a link has begun, or counts as over without having begun.
  void Began(uint64_t period) { ++At(period).begun; }
  void Moved(uint64_t period, plan::Transfer link, uint64_t bytes) {
    At(period).moved[link] += bytes;
  }
  // Returns the bytes that the next period has moved, once for each period, when all of its
  // operations with a link have begun; none before that. A period without such operations counts
  // when its step has ended. `steps`: the number of steps that have ended.
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
    uint64_t begun = 0;  // operations with a link
  };
  // What is counted for a period that was taken already goes to the first that was not.
  Period& At(uint64_t period) {
    const uint64_t index = period - std::min(period, taken_);
    if (index >= periods_.size()) periods_.resize(index + 1);
    return periods_[index];
  }

  const uint64_t num_moves_;
  std::deque<Period> periods_;  // from the first one that has not been taken
  uint64_t taken_ = 0;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_PERIODS_H_
