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
#include <deque>
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

  explicit PlanFollower(std::shared_ptr<const StepPlan> step);

  const std::shared_ptr<const StepPlan>& step() const { return step_; }

  // The caller did something: if it is the event that comes next, its count; else the step is not
  // the one that was planned.
  std::optional<Count> Match(const plan::TraceEvent& event);
  // Whether all that the plan does with an acquire's tile before it is over.
  bool IsReady(Count event) const {
    return IsOver(ended_, before_event_[event % num_events_], event / num_events_);
  }
  // Whether the tile of a release is next leased for reading in the same tier, the plan does
  // nothing with it before, and that lease has not come yet.
  bool IsReadNext(Count release) const {
    const uint32_t events = until_read_[release % num_events_];
    return events > 0 && matched_ <= release + events;
  }
  // Whether the operation is the last that an acquire waits for.
  bool IsLast(Count op, Count event) const;
  // Between two periods: the next event is the first of one.
  bool at_seam() const { return matched_ % num_events_ == 0; }
  // Periods whose events have all come.
  uint64_t periods() const { return matched_ / num_events_; }

  // The lease of an acquire was granted, that of a release is over.
  void Happened(Count event);

  // The operation whose turn it is on a link, if it may start.
  std::optional<Count> Next(plan::Link link) const;
  // One that no link carries, if any may start; it is the caller's from here on. They have no
  // order: what is dropped without a write never waits for what is written first.
  std::optional<Count> TakeFree();
  void PutBack(Count op) { free_.push_back(op); }
  const plan::Op& OpAt(Count op) const { return step_->plan.ops[op % num_ops_]; }
  // It is started: the link goes on.
  void Begin(plan::Link link) { ++begun_[static_cast<size_t>(link)]; }
  // It is over. An operation of one period ends before the same of the next.
  void End(Count op);

  // What operations of the last period that was begun to its end have moved; none before that.
  std::optional<plan::LinkBytes> TakeMoved();
  void CountMoved(Count op, uint64_t bytes);

 private:
  // By event or operation: the operations without a link that wait for it; with kPeriodBefore,
  // those of the period after.
  struct Waiting {
    std::vector<uint32_t> first;
    std::vector<uint32_t> ops;
  };

  bool IsOver(const std::vector<uint64_t>& counts, uint32_t reference, uint64_t period) const;
  bool MayStart(uint32_t op, uint64_t period) const;
  void FindOrder();
  void FindReads();
  void FindWaiting();
  void Release(const Waiting& waiting, Count over, uint64_t num);

  const std::shared_ptr<const StepPlan> step_;
  const uint64_t num_events_;
  const uint64_t num_ops_;
  // By operation: the one before it of the same tile, as in Plan::waits.
  std::vector<uint32_t> before_;
  std::vector<uint32_t> before_event_;  // by event, likewise
  std::vector<uint32_t> until_read_;    // by release: events to such a lease; 0: none is next
  // By link: its operations, in order, and how many of them were begun.
  std::array<std::vector<uint32_t>, plan::kNumLinks> queues_;
  std::array<uint64_t, plan::kNumLinks> begun_ = {};
  Waiting wait_for_event_, wait_for_op_;
  std::deque<Count> free_;  // those that may start
  uint64_t matched_ = 0;
  std::vector<uint64_t> happened_;  // by event: in how many periods
  std::vector<uint64_t> ended_;     // by operation, likewise
  // Of periods that are begun and not yet taken.
  uint64_t taken_periods_ = 0;
  std::vector<plan::LinkBytes> moved_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PLAN_FOLLOWER_H_
