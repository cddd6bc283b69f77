// SPDX-License-Identifier: Apache-2.0
//
// An engine without memory, files and threads: the real pager decides what moves, and each transfer
// ends when a machine's links would have carried it. So a step of a machine that is not there, and
// of a model that fits nowhere, is executed exactly as the engine would, in virtual time.

#ifndef SPILLWAY_SIMULATION_VIRTUAL_ENGINE_H_
#define SPILLWAY_SIMULATION_VIRTUAL_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/stats.h"
#include "spillway/timeline.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/pager.h"
#include "src/engine/recorded_step.h"
#include "src/engine/timeline_recorder.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"
#include "src/simulation/links.h"

namespace spillway::simulation {

struct SimulationOptions {
  plan::PlanOptions budgets;
  Placement placement = {};
  uint64_t small_bytes = 0;  // tiles of at most this size are written together: see PagerOptions
  Machine machine;
  bool plans_steps = true;       // if false, everything is served on demand
  int most_steps = 8;            // that SimulateStep executes, the first one included
  bool ends_early = true;        // SimulateStep ends once a step repeats
  size_t mark_event = SIZE_MAX;  // an event whose time each step reports
  uint64_t timeline_events = 0;  // the newest events that TakeTimeline returns; 0: none is recorded
};

// Those of an engine, with the rates that its run has shown.
SimulationOptions OptionsOf(const engine::RecordedStep& step);

// What a step took.
struct StepResult {
  double begin_seconds = 0;  // since the engine's start
  double seconds = 0;
  double compute_seconds = 0;  // of the trace's events
  double stall_seconds = 0;    // in which the caller waited for a lease
  double mark_seconds = 0;     // until the options' mark_event came; 0: it did not
  uint64_t leases = 0;
  uint64_t waits = 0;  // leases that were not granted at once
  plan::LinkBytes bytes;
  Traffic state;  // of what NVMe moved, optimizer state
};

// Not thread-safe.
class VirtualEngine {
 public:
  // Registers these tiles in their order, `stored` ones with their bytes on NVMe. Only size, role,
  // `transient` and `stored` are read: where a tile rests is the options' placement.
  // ResourceExhausted if tiles that rest in a tier do not fit there. InvalidArgument as from
  // Machine::Check.
  static absl::StatusOr<std::unique_ptr<VirtualEngine>> Open(
      const std::vector<plan::TraceTile>& tiles, const SimulationOptions& options);

  // Makes the plan of a step with these events, as the engine does, and follows it from the next
  // step on. Returns the bytes of the plan. REQUIRES: between steps. Errors of MakePlan.
  absl::StatusOr<plan::LinkBytes> Plan(std::vector<plan::TraceEvent> events);

  // Executes a step. Transfers that the plan has begun for the next step go on. ResourceExhausted
  // as from Engine::Acquire, with the tile's number. Internal: the pager waits for nothing.
  absl::StatusOr<StepResult> Step(std::span<const plan::TraceEvent> events);

  // Transfers that are requested from now on have the links of another machine, whose Check is OK.
  void MoveTo(const Machine& machine) { links_.emplace(machine); }

  double now() const { return now_; }  // seconds since the start
  const EngineStats& stats() const { return pager_.pages().stats(); }
  // Takes the recorded events, without the tensors' names and the budgets.
  Timeline TakeTimeline();

 private:
  explicit VirtualEngine(const SimulationOptions& options);

  // A transfer begins or ends. Events at the same time come in the order in which they were added.
  struct Event {
    double at = 0;
    uint64_t order = 0;
    plan::TileIndex tile = 0;
    plan::Transfer transfer = plan::Transfer::kRead;
    MoveReason reason = MoveReason::kLease;
    bool begins = false;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  absl::Status AddTile(const plan::TraceTile& tile);
  absl::Status WaitForGrant();
  absl::Status Acquire(const plan::TraceEvent& event);
  absl::Status RunUntil(double then);
  absl::Status Next();
  absl::Status Pump();
  void CountState(const engine::Action& action, uint64_t size_bytes);
  void Record();
  int64_t NowNs() const { return static_cast<int64_t>(now_ * 1e9); }

  const plan::PlanOptions budgets_;
  const size_t mark_event_;
  engine::Pager pager_;
  std::optional<Links> links_;                                // always there
  const std::unique_ptr<engine::TimelineRecorder> recorder_;  // null: nothing is recorded
  std::priority_queue<Event> queue_;
  double now_ = 0;
  uint64_t order_ = 0;
  engine::Ticket ticket_ = engine::kNoTicket;
  bool is_granted_ = false, runs_again_ = false;
  StepResult step_;
  Traffic recorded_nvme_, recorded_pinned_;  // when the timeline was taken last
};

// A machine of the same memory, on which the same plan is followed, with other rates and times.
struct OtherMachine {
  Machine machine;
  std::span<const plan::TraceEvent> events;  // differ from the trace's in their times alone
};

struct RepeatedStep {
  StepResult step;
  std::vector<StepResult> others;  // of the other machines
  int steps = 0;                   // executed
  bool repeats = false;            // the last step is as the one before
  std::string not_planned;         // why the step could not be planned; empty if it was
  plan::LinkBytes planned_bytes;   // of the plan
  EngineStats stats;               // of all steps
  Timeline timeline;               // of the last step, or with `observe` of all that it was told
};

// Executes a step until it repeats: it moves the bytes of the step before, and takes its seconds to
// a thousandth. Gives up after `most_steps`, and returns the last one. An engine's first step has
// no plan, because it is only being recorded; here it has one if the trace tells which tiles have
// bytes when a step starts. `observe`, if there is one, is called after each step that follows.
// Then it executes two steps on each other machine, of which the second counts. Errors of
// VirtualEngine.
absl::StatusOr<RepeatedStep> SimulateStep(
    const plan::Trace& trace, const SimulationOptions& options,
    const std::function<void(const StepResult&)>& observe = nullptr,
    std::span<const OtherMachine> others = {});

}  // namespace spillway::simulation

#endif  // SPILLWAY_SIMULATION_VIRTUAL_ENGINE_H_
