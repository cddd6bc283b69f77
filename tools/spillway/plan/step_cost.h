// SPDX-License-Identifier: Apache-2.0
//
// What a step takes: its seconds by phase, its bytes over each link, and how full each tier gets.
// The engine's own planner and pager say it, in virtual time.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_COST_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_COST_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/plan/bounds.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/step/timed_step.h"

namespace spillway::command {

struct StepCost {
  bool is_simulated = true;     // false: the seconds and bytes are those of the bound
  double seconds = 0;           // forward, backward, update and waiting together
  double forward_seconds = 0;   // each, if nothing waited
  double backward_seconds = 0;  // with what is computed again
  double update_seconds = 0;
  double waiting_seconds = 0;
  double flops = 0;  // of products and attention, with what is computed again
  plan::LinkBytes bytes;
  plan::LinkBytes planned_bytes;
  double bound_seconds = 0;           // what no schedule within the budgets beats
  plan::BytesBound bytes_bound;       // the same of bytes
  double transfer_bound_seconds = 0;  // the bound if computing took no time
  std::array<double, plan::kNumLinks> link_seconds = {};  // by Transfer: if nothing else bound
  double drive_seconds = 0;                       // of reads and writes, which share the drives
  double checksum_seconds = 0;                    // of the CPU's hashing
  std::array<RoleBytes, kNumTiers> fullest = {};  // of device and memory, by Tier
  uint64_t num_tiles = 0;
  int steps = 0;                 // executed
  bool repeats = false;          // the last two are alike
  std::string not_planned;       // why the step is served on demand; empty: it is planned
  std::vector<double> others;    // seconds on the execution's other machines
  double update_at_seconds = 0;  // when the update begins, after the step did; 0: not known
  Timeline timeline;             // of the steps that were observed, else of the last one

  double walk_seconds() const { return forward_seconds + backward_seconds; }
  // Seconds of the transfers that take longest, if nothing else bound.
  double io_seconds() const;
};

// What a part of the step would take if nothing else bound: "computing", "the update", "NVMe
// reads".
struct PartAlone {
  std::string_view key;  // as the JSON has it: "nvme_reads"
  std::string_view name;
  double seconds = 0;
};
std::vector<PartAlone> SecondsAlone(const StepCost& cost);
// What binds the step: whichever takes longest alone.
std::string_view WhatBinds(const StepCost& cost);
// Of the transfers alone, the same.
std::string_view SlowestTransfer(const StepCost& cost);

// The question's machine with other drives, another link or faster processors. Its memory is the
// same.
struct FasterMachine {
  Hardware hardware;
  double gpu = 1;  // how many times as fast as the question's it computes
  double cpu = 1;  // the same of the update; `hardware` has the rate of checksums
};

// How a step is executed.
struct Execution {
  int most_steps = 8;  // see SimulationOptions
  bool ends_early = true;
  bool is_quick = false;  // plans with little effort, and leaves the bounds out
  uint64_t timeline_events = 0;
  // Called after each step but the first, before its bounds are known.
  std::function<void(const simulation::StepResult&)> observe;
  std::vector<FasterMachine> others;  // on which the same plan is followed afterwards
};

// Executes the step on the question's machine. `step` may be of larger tiles than the model's own,
// and of a question with another memory. REQUIRES: it fits. Errors of
// SimulateStep.
absl::StatusOr<StepCost> CostOf(const Question& question, const Fit& fit, const TimedStep& step,
                                const Execution& execution = {});

// The same with a few thousand tiles, at once. Where even those would be too many, because the
// budgets or the model's layers ask for it, seconds and bytes are those of the bound, from fewer
// layers with as much less memory.
class QuickStep {
 public:
  // REQUIRES: `fit` is the question's, and it fits. Errors of TimeStep.
  static absl::StatusOr<QuickStep> Make(const Question& question, const Fit& fit);

  // `faster_gpu`: how many times as fast as the question's GPU it computes.
  // `with_bound`: else the bounds are zero.
  absl::StatusOr<StepCost> Cost(const Question& question, const Fit& fit, bool with_bound,
                                std::vector<FasterMachine> others = {},
                                uint64_t timeline_events = 0) const;

 private:
  TimedStep step_;
  double layers_share_ = 1;  // of the model's layers, that `step_` has; below 1 the bound is taken
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_COST_H_
