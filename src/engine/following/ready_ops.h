// SPDX-License-Identifier: Apache-2.0
//
// Operations of a plan that may start, in queues: of each link those of least position first.

#ifndef SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_
#define SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "src/engine/following/plan_progress.h"

namespace spillway::engine {

class ReadyOps {
 public:
  using Count = PlanProgress::Count;
  // A queue by link, and one of those that take room without a link. Those that do neither have no
  // order: what is dropped without a write never waits for what is written first.
  static constexpr size_t kNoLink = plan::kNumLinks;
  static constexpr size_t kNoOrder = kNoLink + 1;

  // Those of `tiles`, at the plan's begin; both must outlive it.
  ReadyOps(const StepPlan& step, const PlanProgress* tiles, bool takes_any_frame,
           const std::atomic<bool>* stop);
  // Back there.
  void Restart();

  size_t QueueOf(Count op) const;
  void Push(Count op);
  // The first of a queue; those that were skipped since they came are forgotten.
  std::optional<Count> First(size_t queue);
  // REQUIRES: there is a first.
  void Pop(size_t queue) { queues_[queue].pop(); }
  // One of those without an order.
  std::optional<Count> TakeUnordered();

 private:
  // Those that may start when the plan begins are not copied.
  class Queue {
   public:
    void SetStart(std::vector<uint32_t> start) { start_ = std::move(start); }
    void Restart() {
      next_ = 0;
      since_ = {};
    }
    bool empty() const { return next_ == start_.size() && since_.empty(); }
    Count top() const { return IsAtStart() ? start_[next_] : since_.top(); }
    void push(Count op) { since_.push(op); }
    void pop() { IsAtStart() ? void(++next_) : since_.pop(); }

   private:
    bool IsAtStart() const {
      return next_ < start_.size() && (since_.empty() || start_[next_] < since_.top());
    }
    std::vector<uint32_t> start_;  // in order
    size_t next_ = 0;
    std::priority_queue<Count, std::vector<Count>, std::greater<>> since_;
  };

  const StepPlan& step_;
  const PlanProgress& tiles_;
  const bool takes_any_frame_;
  std::array<Queue, kNoLink + 1> queues_;
  std::vector<uint32_t> unordered_at_start_;
  size_t next_unordered_ = 0;  // of them
  std::deque<Count> unordered_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_READY_OPS_H_
