// SPDX-License-Identifier: Apache-2.0

#include "src/engine/plan_follower.h"

#include <algorithm>
#include <utility>

#include "src/plan/keeping.h"

namespace spillway::engine {
namespace {

int QueueOf(plan::Op::Kind kind) {
  return plan::Moves(kind) ? static_cast<int>(plan::LinkOf(kind)) : plan::kNumLinks;
}

bool SameEvent(const plan::TraceEvent& a, const plan::TraceEvent& b) {
  return a.tile == b.tile && a.kind == b.kind && a.tier == b.tier && a.access == b.access;
}

}  // namespace

PlanFollower::PlanFollower(std::shared_ptr<const StepPlan> step)
    : step_(std::move(step)),
      num_events_(step_->plan.num_events),
      num_ops_(step_->plan.ops.size()),
      before_(num_ops_, plan::kNever),
      happened_(num_events_),
      ended_(num_ops_) {
  const std::vector<plan::Op>& ops = step_->plan.ops;
  // Twice round: the first operation of a tile comes after its last of the period before.
  std::vector<uint32_t> last(step_->trace.tiles.size(), plan::kNever);
  for (const uint32_t bit : {plan::kPeriodBefore, uint32_t{0}}) {
    for (uint32_t op = 0; op < num_ops_; ++op) {
      if (bit == 0) before_[op] = last[ops[op].tile];
      last[ops[op].tile] = op | bit;
    }
  }
  // `last` goes round once more, in the order that operations and events have.
  for (uint32_t& op : last) op |= op == plan::kNever ? 0 : plan::kPeriodBefore;
  before_event_.reserve(num_events_);
  uint32_t op = 0;
  for (uint32_t event = 0; event < num_events_; ++event) {
    for (; op < num_ops_ && step_->plan.position[op] < plan::AtEvent(event); ++op)
      last[ops[op].tile] = op;
    before_event_.push_back(last[step_->trace.events[event].tile]);
  }
  for (op = 0; op < num_ops_; ++op)
    queues_[static_cast<size_t>(QueueOf(ops[op].kind))].push_back(op);
}

std::optional<PlanFollower::Count> PlanFollower::Match(const plan::TraceEvent& event) {
  if (!SameEvent(event, step_->trace.events[matched_ % num_events_])) return std::nullopt;
  return matched_++;
}

// Whether what a reference means, seen from a period, has happened or ended.
bool PlanFollower::IsOver(const std::vector<uint64_t>& counts, uint32_t reference,
                          uint64_t period) const {
  if (reference == plan::kNever) return true;
  const bool before = (reference & plan::kPeriodBefore) != 0;
  return counts[reference & ~plan::kPeriodBefore] >= period + (before ? 0 : 1);
}

bool PlanFollower::IsLast(Count op, Count event) const {
  const uint32_t last = before_event_[event % num_events_];
  if (last == plan::kNever) return false;
  const uint64_t period = event / num_events_;
  const bool before = (last & plan::kPeriodBefore) != 0;
  if (before && period == 0) return false;
  return op == (period - (before ? 1 : 0)) * num_ops_ + (last & ~plan::kPeriodBefore);
}

std::optional<PlanFollower::Count> PlanFollower::Next(int queue) const {
  const std::vector<uint32_t>& order = queues_[static_cast<size_t>(queue)];
  if (order.empty()) return std::nullopt;
  const uint64_t begun = begun_[static_cast<size_t>(queue)];
  const uint64_t period = begun / order.size();
  const uint32_t index = order[begun % order.size()];
  const plan::Op& op = step_->plan.ops[index];
  if (!IsOver(ended_, before_[index], period) || !IsOver(happened_, op.after, period))
    return std::nullopt;
  for (const uint32_t wait : step_->plan.WaitsOf(index)) {
    if (!IsOver(ended_, wait, period)) return std::nullopt;
  }
  return period * num_ops_ + index;
}

void PlanFollower::Begin(int queue) { ++begun_[static_cast<size_t>(queue)]; }

void PlanFollower::CountMoved(Count op, uint64_t bytes) {
  const uint64_t period = op / num_ops_ - taken_periods_;
  if (period >= moved_.size()) moved_.resize(period + 1);
  moved_[period][plan::LinkOf(OpAt(op).kind)] += bytes;
}

std::optional<plan::LinkBytes> PlanFollower::TakeMoved() {
  std::optional<plan::LinkBytes> last;
  if (num_ops_ == 0 && periods() > std::exchange(taken_periods_, periods()))
    return plan::LinkBytes{};
  while (num_ops_ > 0) {
    bool begun = true;
    for (size_t queue = 0; queue < kNumQueues; ++queue)
      begun &= begun_[queue] >= (taken_periods_ + 1) * queues_[queue].size();
    if (!begun) break;
    last = moved_.empty() ? plan::LinkBytes{} : moved_.front();
    if (!moved_.empty()) moved_.erase(moved_.begin());
    ++taken_periods_;
  }
  return last;
}

}  // namespace spillway::engine
