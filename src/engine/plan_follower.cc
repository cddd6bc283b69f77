// SPDX-License-Identifier: Apache-2.0

#include "src/engine/plan_follower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/plan/keeping.h"

namespace spillway::engine {
namespace {

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
  FindOrder();
  FindReads();
  FindWaiting();
}

void PlanFollower::FindOrder() {
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
  for (op = 0; op < num_ops_; ++op) {
    if (plan::Moves(ops[op].kind))
      queues_[static_cast<size_t>(plan::LinkOf(ops[op].kind))].push_back(op);
  }
}

// Twice round, as what follows a tile's last release is in the next period.
void PlanFollower::FindReads() {
  const std::vector<plan::TraceEvent>& events = step_->trace.events;
  const auto size = static_cast<uint32_t>(num_events_);
  until_read_.resize(num_events_);
  // By tile: its last release, if nothing has been done with it since.
  std::vector<uint32_t> released(step_->trace.tiles.size(), plan::kNever);
  for (int round = 0; round < 2; ++round) {
    uint32_t op = 0;
    const auto pass_ops = [&](uint64_t until) {
      for (; op < num_ops_ && step_->plan.position[op] < until; ++op)
        released[step_->plan.ops[op].tile] = plan::kNever;
    };
    for (uint32_t event = 0; event < num_events_; ++event) {
      pass_ops(plan::AtEvent(event));
      const plan::TraceEvent& next = events[event];
      uint32_t& before = released[next.tile];
      if (next.kind == plan::TraceEvent::Kind::kAcquire && next.access == Access::kRead &&
          before != plan::kNever && events[before].tier == next.tier) {
        until_read_[before] = event > before ? event - before : event + size - before;
      }
      before = next.kind == plan::TraceEvent::Kind::kRelease ? event : plan::kNever;
    }
    pass_ops(~uint64_t{0});
  }
}

void PlanFollower::FindWaiting() {
  // What each is waited for by, counted first.
  const auto for_all = [this](const auto& visit) {
    for (uint32_t op = 0; op < num_ops_; ++op) {
      if (plan::Moves(step_->plan.ops[op].kind)) continue;
      visit(wait_for_event_, step_->plan.ops[op].after, op);
      visit(wait_for_op_, before_[op], op);
      for (const uint32_t wait : step_->plan.WaitsOf(op)) {
        if (wait != before_[op]) visit(wait_for_op_, wait, op);
      }
    }
  };
  wait_for_event_.first.resize(num_events_ + 2);
  wait_for_op_.first.resize(num_ops_ + 2);
  for_all([](Waiting& waiting, uint32_t reference, uint32_t) {
    if (reference != plan::kNever) ++waiting.first[(reference & ~plan::kPeriodBefore) + 2];
  });
  for (Waiting* waiting : {&wait_for_event_, &wait_for_op_}) {
    std::partial_sum(waiting->first.begin(), waiting->first.end(), waiting->first.begin());
    waiting->ops.resize(waiting->first.back());
  }
  for_all([](Waiting& waiting, uint32_t reference, uint32_t op) {
    if (reference == plan::kNever) return;
    uint32_t& place = waiting.first[(reference & ~plan::kPeriodBefore) + 1];
    waiting.ops[place++] = op | (reference & plan::kPeriodBefore);
  });
  for (uint32_t op = 0; op < num_ops_; ++op) {
    if (!plan::Moves(step_->plan.ops[op].kind) && MayStart(op, 0)) free_.push_back(op);
  }
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

bool PlanFollower::MayStart(uint32_t op, uint64_t period) const {
  if (!IsOver(ended_, before_[op], period)) return false;
  if (!IsOver(happened_, step_->plan.ops[op].after, period)) return false;
  for (const uint32_t wait : step_->plan.WaitsOf(op)) {
    if (!IsOver(ended_, wait, period)) return false;
  }
  return true;
}

std::optional<PlanFollower::Count> PlanFollower::Next(plan::Link link) const {
  const std::vector<uint32_t>& order = queues_[static_cast<size_t>(link)];
  if (order.empty()) return std::nullopt;
  const uint64_t begun = begun_[static_cast<size_t>(link)];
  const uint64_t period = begun / order.size();
  const uint32_t op = order[begun % order.size()];
  if (!MayStart(op, period)) return std::nullopt;
  return period * num_ops_ + op;
}

std::optional<PlanFollower::Count> PlanFollower::TakeFree() {
  if (free_.empty()) return std::nullopt;
  const Count op = free_.front();
  free_.pop_front();
  return op;
}

// What is over was the last that some operations waited for.
void PlanFollower::Release(const Waiting& waiting, Count over, uint64_t num) {
  const uint64_t index = over % num;
  for (uint32_t i = waiting.first[index]; i < waiting.first[index + 1]; ++i) {
    const uint32_t op = waiting.ops[i] & ~plan::kPeriodBefore;
    const uint64_t period = over / num + ((waiting.ops[i] & plan::kPeriodBefore) != 0 ? 1 : 0);
    if (MayStart(op, period)) free_.push_back(period * num_ops_ + op);
  }
}

void PlanFollower::End(Count op) {
  ++ended_[op % num_ops_];
  Release(wait_for_op_, op, num_ops_);
}

void PlanFollower::Happened(Count event) {
  ++happened_[event % num_events_];
  Release(wait_for_event_, event, num_events_);
}

void PlanFollower::CountMoved(Count op, uint64_t bytes) {
  const uint64_t period = op / num_ops_ - taken_periods_;
  if (period >= moved_.size()) moved_.resize(period + 1);
  moved_[period][plan::LinkOf(OpAt(op).kind)] += bytes;
}

std::optional<plan::LinkBytes> PlanFollower::TakeMoved() {
  std::optional<plan::LinkBytes> last;
  const bool moves =
      std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) { return !queue.empty(); });
  if (!moves && periods() > std::exchange(taken_periods_, periods())) return plan::LinkBytes{};
  while (moves) {
    bool begun = true;
    for (size_t link = 0; link < queues_.size(); ++link)
      begun &= begun_[link] >= (taken_periods_ + 1) * queues_[link].size();
    if (!begun) break;
    last = moved_.empty() ? plan::LinkBytes{} : moved_.front();
    if (!moved_.empty()) moved_.erase(moved_.begin());
    ++taken_periods_;
  }
  return last;
}

}  // namespace spillway::engine
