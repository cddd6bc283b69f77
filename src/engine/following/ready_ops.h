// SPDX-License-Identifier: Apache-2.0
//
// Queues of the operations of a plan that may start. Each link has a queue in order of position.
// Operations without a link have no order, so that a copy that is dropped without a write never
// waits for one that is written first. An operation that is skipped stays in its queue: thousands
// may be, and to remove them all at once would take milliseconds. The caller that takes it drops it
// (PlanProgress::MayStartNow).

#ifndef SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_
#define SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/heap.h"
#include "src/engine/following/plan_progress.h"

namespace spillway::engine {

class ReadyOps {
 public:
  using Count = PlanProgress::Count;
  // Begins with the operations of `tiles` that may start at the plan's begin. `step` must outlive
  // it.
  ReadyOps(const StepPlan& step, const PlanProgress& tiles);
  // Returns to the plan's begin.
  void Restart();

  void Push(Count op);
  // Takes the first operation of a link.
  std::optional<Count> Take(plan::Transfer link) {
    return queues_[static_cast<size_t>(link)].Take();
  }
  // Takes an operation without a link.
  std::optional<Count> TakeUnordered();

 private:
  // A priority queue whose Restart does not copy the operations that may start at the plan's begin.
  class Queue {
   public:
    // `start`: the operations at the plan's begin, in order of position. `most`: how many others
    // the queue has memory for.
    void Prepare(std::vector<uint32_t> start, size_t most) {
      start_ = std::move(start);
      since_.Reserve(most);
    }
    void Restart() {
      next_ = 0;
      since_.Clear();
    }
    void Push(Count op) { since_.push(op); }
    std::optional<Count> Take() {
      if (next_ < start_.size() && (since_.empty() || start_[next_] < since_.top()))
        return start_[next_++];
      if (since_.empty()) return std::nullopt;
      const Count op = since_.top();
      since_.pop();
      return op;
    }

   private:
    std::vector<uint32_t> start_;  // at the plan's begin, in order of position
    size_t next_ = 0;
    base::Heap<Count> since_;
  };

  const StepPlan& step_;
  std::array<Queue, plan::kNumLinks> queues_;
  std::vector<uint32_t> unordered_at_start_;
  size_t next_unordered_ = 0;  // in `unordered_at_start_`
  std::deque<Count> unordered_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_
