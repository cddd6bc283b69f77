// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/ready_ops.h"

#include <algorithm>

namespace spillway::engine {

ReadyOps::ReadyOps(const StepPlan& step, const PlanProgress* tiles, bool takes_any_frame,
                   const std::atomic<bool>* stop)
    : step_(step), tiles_(*tiles), takes_any_frame_(takes_any_frame) {
  std::array<std::vector<uint32_t>, kNoOrder + 1> start;
  for (plan::TileIndex tile = 0; tile < tiles_.num_tiles(); ++tile) {
    if (stop != nullptr && *stop) return;
    if (!tiles_.HasOpDue(tile)) continue;
    const Count op = tiles_.NextOp(tile);
    start[QueueOf(op)].push_back(static_cast<uint32_t>(op));
  }
  for (std::vector<uint32_t>& ops : start) std::sort(ops.begin(), ops.end());
  unordered_at_start_ = std::move(start[kNoOrder]);
  for (size_t queue = 0; queue < queues_.size(); ++queue)
    queues_[queue].SetStart(std::move(start[queue]));
}

void ReadyOps::Restart() {
  for (Queue& queue : queues_) queue.Restart();
  next_unordered_ = 0;
  unordered_.clear();
}

size_t ReadyOps::QueueOf(Count op) const {
  const plan::Transfer kind = step_.plan.ops[op % step_.plan.ops.size()].kind;
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

std::optional<ReadyOps::Count> ReadyOps::First(size_t queue) {
  Queue& ready = queues_[queue];
  while (!ready.empty() && !tiles_.MayStartNow(ready.top())) ready.pop();
  return ready.empty() ? std::nullopt : std::optional(ready.top());
}

std::optional<ReadyOps::Count> ReadyOps::TakeUnordered() {
  while (next_unordered_ < unordered_at_start_.size() || !unordered_.empty()) {
    const bool at_start = next_unordered_ < unordered_at_start_.size();
    const Count op = at_start ? unordered_at_start_[next_unordered_++] : unordered_.front();
    if (!at_start) unordered_.pop_front();
    if (tiles_.MayStartNow(op)) return op;
  }
  return std::nullopt;
}

}  // namespace spillway::engine
