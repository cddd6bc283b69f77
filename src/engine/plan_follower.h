// SPDX-License-Identifier: Apache-2.0
//
// How far a plan has been followed: which event of the step comes next, which operations may start.
// The plan says which operations there are and in which order each link takes them; the follower
// says only when, by what has happened and ended so far. Pure; it moves nothing.
//
// Periods follow each other without a pause: operations of the next one start as soon as nothing
// that they wait for is left.

#ifndef SPILLWAY_ENGINE_PLAN_FOLLOWER_H_
#define SPILLWAY_ENGINE_PLAN_FOLLOWER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/plan/bounds.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace spillway::engine {

// A step that repeats, with its plan. Events of `trace` are those that the plan speaks of; its
// tiles are the engine's, by index.
struct StepPlan {
  plan::Trace trace;
  plan::Plan plan;
  plan::BytesBound bound;
};

class PlanFollower {
 public:
  // An event, or an operation, of a period: counted on from the first period's first.
  using Count = uint64_t;

  // Operations that no link carries take their turn in a queue of their own.
  static constexpr int kNumQueues = plan::kNumLinks + 1;

  explicit PlanFollower(std::shared_ptr<const StepPlan> step);

  const std::shared_ptr<const StepPlan>& step() const { return step_; }

  // The caller did something: if it is the event that comes next, its count; else the step is not
  // the one that was planned.
  std::optional<Count> Match(const plan::TraceEvent& event);
  // Whether all that the plan does with an acquire's tile before it is over.
  bool IsReady(Count event) const {
    return IsOver(ended_, before_event_[event % num_events_], event / num_events_);
  }
  // Whether the operation is the last that an acquire waits for.
  bool IsLast(Count op, Count event) const;
  // Between two periods: the next event is the first of one.
  bool at_seam() const { return matched_ % num_events_ == 0; }
  // Periods whose events have all come.
  uint64_t periods() const { return matched_ / num_events_; }

  // The lease of an acquire was granted, that of a release is over.
  void Happened(Count event) { ++happened_[event % num_events_]; }

  // The operation whose turn it is in a queue, if it may start.
  std::optional<Count> Next(int queue) const;
  const plan::Op& OpAt(Count op) const { return step_->plan.ops[op % num_ops_]; }
  // It is started: the queue goes on.
  void Begin(int queue);
  // It is over. An operation of one period ends before the same of the next.
  void End(Count op) { ++ended_[op % num_ops_]; }

  // What operations of the last period that was begun to its end have moved; none before that.
  std::optional<plan::LinkBytes> TakeMoved();
  void CountMoved(Count op, uint64_t bytes);

 private:
  bool IsOver(const std::vector<uint64_t>& counts, uint32_t reference, uint64_t period) const;

  const std::shared_ptr<const StepPlan> step_;
  const uint64_t num_events_;
  const uint64_t num_ops_;
  // By operation: the one before it of the same tile, as in Plan::waits.
  std::vector<uint32_t> before_;
  std::vector<uint32_t> before_event_;  // by event, likewise
  // By queue: its operations, in order, and how many of them were begun.
  std::array<std::vector<uint32_t>, kNumQueues> queues_;
  std::array<uint64_t, kNumQueues> begun_ = {};
  uint64_t matched_ = 0;
  std::vector<uint64_t> happened_;  // by event: in how many periods
  std::vector<uint64_t> ended_;     // by operation, likewise
  // Of periods that are begun and not yet taken.
  uint64_t taken_periods_ = 0;
  std::vector<plan::LinkBytes> moved_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_FOLLOWER_H_
