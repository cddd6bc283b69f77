// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/ready_ops.h"

#include <utility>

namespace spillway::engine {

ReadyOps::ReadyOps(const StepPlan& step, const PlanProgress& tiles, bool takes_any_frame,
                   plan::Stop stop)
    : step_(step), takes_any_frame_(takes_any_frame) {
  std::array<std::vector<uint32_t>, kNoOrder + 1> start;
  std::array<size_t, kNoOrder + 1> num_ops = {};
  for (uint32_t op = 0; op < step.plan.ops.size(); ++op) {
    if (stop) return;
    const size_t queue = QueueOf(op);
    ++num_ops[queue];
    const bool is_first = tiles.index().op_number[op] == 0;  // of its tile's
    if (is_first && tiles.HasOpDue(step.plan.ops[op].tile)) start[queue].push_back(op);
  }
  unordered_at_start_ = std::move(start[kNoOrder]);
  for (size_t queue = 0; queue < queues_.size(); ++queue)
    queues_[queue].Prepare(std::move(start[queue]), num_ops[queue]);
}

void ReadyOps::Restart() {
  for (Queue& queue : queues_) queue.Restart();
  next_unordered_ = 0;
  unordered_.clear();
}

size_t ReadyOps::QueueOf(Count op) const {
  const plan::Transfer kind = step_.OpAt(op).kind;
  if (plan::HasLink(kind)) return static_cast<size_t>(kind);
  return takes_any_frame_ && kind != plan::Transfer::kDrop ? kNoLink : kNoOrder;
}

void ReadyOps::Push(Count op) {
  const size_t queue = QueueOf(op);
  if (queue == kNoOrder) {
    unordered_.push_back(op);
  } else {
    queues_[queue].push(op);
  }
}

std::optional<ReadyOps::Count> ReadyOps::TakeUnordered() {
  if (next_unordered_ < unordered_at_start_.size()) return unordered_at_start_[next_unordered_++];
  if (unordered_.empty()) return std::nullopt;
  const Count op = unordered_.front();
  unordered_.pop_front();
  return op;
}

}  // namespace spillway::engine
