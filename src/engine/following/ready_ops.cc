// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/ready_ops.h"

#include <utility>

namespace spillway::engine {

ReadyOps::ReadyOps(const StepPlan& step, const PlanProgress& tiles) : step_(step) {
  std::array<std::vector<uint32_t>, plan::kNumLinks> start;
  std::array<size_t, plan::kNumLinks> num_ops = {};
  for (uint32_t op = 0; op < step.plan.ops.size(); ++op) {
    const plan::Transfer kind = step.plan.ops[op].kind;
    const auto link = static_cast<size_t>(kind);
    if (plan::HasLink(kind)) ++num_ops[link];
    const bool is_first = tiles.index().op_number[op] == 0;  // of its tile's
    if (is_first && tiles.HasOpDue(step.plan.ops[op].tile))
      (plan::HasLink(kind) ? start[link] : unordered_at_start_).push_back(op);
  }
  for (size_t link = 0; link < queues_.size(); ++link)
    queues_[link].Prepare(std::move(start[link]), num_ops[link]);
}

void ReadyOps::Restart() {
  for (Queue& queue : queues_) queue.Restart();
  next_unordered_ = 0;
  unordered_.clear();
}

void ReadyOps::Push(Count op) {
  const plan::Transfer kind = step_.OpAt(op).kind;
  if (plan::HasLink(kind)) {
    queues_[static_cast<size_t>(kind)].Push(op);
  } else {
    unordered_.push_back(op);
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
