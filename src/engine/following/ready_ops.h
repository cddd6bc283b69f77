// SPDX-License-Identifier: Apache-2.0
//
// Queues of the operations of a plan that may start. Each link has a queue in order of position. An
// operation that is skipped stays in its queue: thousands may be, and to remove them all at once
// would take milliseconds. The caller that takes it drops it (PlanProgress::MayStartNow).

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
  // There is one queue for each link and, if operations take any frame, one for those that take a
  // frame without a link. All others have no order, so that a copy that is dropped without a write
  // never waits for one that is written first.
  static constexpr size_t kNoLink = plan::kNumLinks;
  static constexpr size_t kNoOrder = kNoLink + 1;

  // Begins with the operations of `tiles` that may start at the plan's begin. `step` must outlive
  // it.
  ReadyOps(const StepPlan& step, const PlanProgress& tiles, bool takes_any_frame, plan::Stop stop);
  // Returns to the plan's begin.
  void Restart();

  size_t QueueOf(Count op) const;
  void Push(Count op);
  // The first operation of a queue.
  std::optional<Count> First(size_t queue) const {
    return queues_[queue].empty() ? std::nullopt : std::optional(queues_[queue].top());
  }
  // REQUIRES: First(queue) has a value.
  void Pop(size_t queue) { queues_[queue].pop(); }
  // Takes an operation that has no order.
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
    bool empty() const { return next_ == start_.size() && since_.empty(); }
    Count top() const { return IsAtStart() ? start_[next_] : since_.top(); }
    void push(Count op) { since_.push(op); }
    void pop() { IsAtStart() ? void(++next_) : since_.pop(); }

   private:
    bool IsAtStart() const {
      return next_ < start_.size() && (since_.empty() || start_[next_] < since_.top());
    }
    std::vector<uint32_t> start_;  // at the plan's begin, in order of position
    size_t next_ = 0;
    base::Heap<Count> since_;
  };

  const StepPlan& step_;
  const bool takes_any_frame_;
  std::array<Queue, kNoLink + 1> queues_;
  std::vector<uint32_t> unordered_at_start_;
  size_t next_unordered_ = 0;  // in `unordered_at_start_`
  std::deque<Count> unordered_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_
