// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/step_cost.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "src/base/status_macros.h"
#include "src/plan/ways_to_retain.h"
#include "tools/spillway/plan/large_tiles.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using plan::Transfer;

constexpr std::array<Transfer, plan::kNumLinks> kLinks = {Transfer::kRead, Transfer::kWrite,
                                                          Transfer::kCopyIn, Transfer::kCopyOut};
constexpr std::array<std::string_view, plan::kNumLinks> kLinkNames = {
    "NVMe reads", "NVMe writes", "copies to the device", "copies from the device"};

plan::PlanOptions BudgetsOf(const Question& question, const Fit& fit) {
  plan::PlanOptions budgets;
  budgets.device_bytes = question.device_bytes() - fit.workspace_bytes;
  budgets.pinned_bytes = question.pinned_bytes();
  return budgets;
}

// What is known of a step without executing it.
StepCost Alone(const TimedStep& step) {
  StepCost cost;
  cost.forward_seconds = step.forward_seconds;
  cost.backward_seconds = step.backward_seconds;
  cost.update_seconds = step.update_seconds;
  cost.flops = step.flops;
  cost.num_tiles = step.trace.tiles.size();
  return cost;
}

void AddBounds(const plan::Trace& trace, const plan::PlanOptions& budgets, const plan::Rates& rates,
               bool is_quick, StepCost* cost) {
  constexpr uint32_t kFewTimes = 32;
  const plan::SecondsBound bound(
      trace, budgets, plan::BoundBytes(trace, budgets, is_quick ? kFewTimes : UINT32_MAX));
  plan::EventLog log;
  for (const plan::TraceEvent& event : trace.events) log.push_back(event);
  cost->bytes_bound = bound.bytes();
  cost->bound_seconds = bound.Seconds(plan::SecondsBound::Computing(log), rates);
  cost->transfer_bound_seconds = bound.Transfers(rates);
}

void AddLinks(const plan::Rates& rates, StepCost* cost) {
  for (size_t i = 0; i < kLinks.size(); ++i)
    cost->link_seconds[i] = static_cast<double>(cost->bytes[kLinks[i]]) / rates[kLinks[i]];
  cost->drive_seconds = static_cast<double>(cost->bytes.nvme()) / rates.nvme;
  cost->checksum_seconds = static_cast<double>(cost->bytes.nvme()) / rates.checksum;
}

// The timeline with the names of its tensors and the budgets, as an engine returns it.
Timeline Named(Timeline timeline, const Question& question,
               const std::vector<TensorSpec>& tensors) {
  uint32_t first_tile = 0;
  for (const TensorSpec& tensor : tensors) {
    const auto num_tiles = static_cast<uint32_t>(tensor.num_tiles());
    timeline.tensors.push_back({tensor.name, first_tile, num_tiles});
    first_tile += num_tiles;
  }
  timeline.budget_bytes = {question.device_bytes(), question.pinned_bytes(), kUnlimited};
  return timeline;
}

// The events of a step on a machine of faster processors.
std::vector<plan::TraceEvent> FasterEvents(const TimedStep& step, const FasterMachine& machine) {
  std::vector<plan::TraceEvent> events = step.trace.events;
  for (size_t i = 0; i < events.size(); ++i) {
    const bool is_device = i < step.update || events[i].tier == Tier::kDevice;
    events[i].seconds_before /= is_device ? machine.gpu : machine.cpu;
  }
  return events;
}

// The bound of a step of `share` of the model's layers, within that share of the memory, and from
// it the bound of all layers: what is read, written and copied grows with them.
StepCost BoundOf(const Question& question, const Fit& fit, const TimedStep& step, double share) {
  const plan::Rates rates = question.hardware.Links().Rates();
  plan::PlanOptions budgets = BudgetsOf(question, fit);
  const auto less = [&](uint64_t bytes) {
    return static_cast<uint64_t>(static_cast<double>(bytes) * share);
  };
  budgets.device_bytes = less(budgets.device_bytes);
  budgets.pinned_bytes = less(budgets.pinned_bytes);
  StepCost cost = Alone(step);
  AddBounds(step.trace, budgets, rates, /*is_quick=*/true, &cost);
  cost.is_simulated = false;
  const auto more = [&](uint64_t bytes) {
    return static_cast<uint64_t>(static_cast<double>(bytes) / share);
  };
  // Each of these is a bound by itself; together they may be less than the bound of both.
  cost.bytes[Transfer::kRead] = more(cost.bytes_bound.nvme_read);
  cost.bytes[Transfer::kWrite] = more(std::max(
      cost.bytes_bound.nvme_written,
      cost.bytes_bound.nvme - std::min(cost.bytes_bound.nvme, cost.bytes_bound.nvme_read)));
  cost.bytes[Transfer::kCopyIn] = more(cost.bytes_bound.device / 2);
  cost.bytes[Transfer::kCopyOut] = more(cost.bytes_bound.device - cost.bytes_bound.device / 2);
  for (double* seconds : {&cost.forward_seconds, &cost.backward_seconds, &cost.update_seconds,
                          &cost.bound_seconds, &cost.transfer_bound_seconds})
    *seconds /= share;
  cost.flops /= share;
  AddLinks(rates, &cost);
  cost.seconds = std::max(cost.bound_seconds, cost.walk_seconds() + cost.update_seconds);
  cost.waiting_seconds = cost.seconds - cost.walk_seconds() - cost.update_seconds;
  return cost;
}

}  // namespace

double StepCost::io_seconds() const {
  return std::max({*std::max_element(link_seconds.begin(), link_seconds.end()), drive_seconds,
                   checksum_seconds});
}

std::vector<PartAlone> SecondsAlone(const StepCost& cost) {
  constexpr std::array<std::string_view, plan::kNumLinks> kKeys = {"nvme_reads", "nvme_writes",
                                                                   "copies_in", "copies_out"};
  std::vector<PartAlone> alone;
  for (size_t i = 0; i < kLinks.size(); ++i)
    alone.push_back({kKeys[i], kLinkNames[i], cost.link_seconds[i]});
  alone.push_back({"nvme", "NVMe reads and writes together", cost.drive_seconds});
  alone.push_back({"checksums", "checksums of NVMe", cost.checksum_seconds});
  alone.push_back({"update", "the update", cost.update_seconds});
  alone.push_back({"computing", "computing", cost.walk_seconds()});
  return alone;
}

std::string_view SlowestTransfer(const StepCost& cost) {
  for (const PartAlone& part : SecondsAlone(cost))
    if (part.seconds == cost.io_seconds()) return part.name;
  return kLinkNames[0];
}

std::string_view WhatBinds(const StepCost& cost) {
  if (cost.io_seconds() > std::max(cost.walk_seconds(), cost.update_seconds))
    return SlowestTransfer(cost);
  return cost.update_seconds > cost.walk_seconds() ? "the update" : "computing";
}

absl::StatusOr<StepCost> CostOf(const Question& question, const Fit& fit, const TimedStep& step,
                                const Execution& execution) {
  simulation::SimulationOptions options;
  options.budgets = BudgetsOf(question, fit);
  if (execution.is_quick) options.budgets.choose_retained = &plan::OneWayToRetain;
  options.placement = question.placement;
  options.machine = question.hardware.Links();
  options.most_steps = execution.most_steps;
  options.ends_early = execution.ends_early;
  options.timeline_events = execution.timeline_events;
  options.mark_event = step.update;
  std::deque<std::vector<plan::TraceEvent>> faster;
  std::vector<simulation::OtherMachine> others;
  for (const FasterMachine& other : execution.others) {
    const bool is_same = other.gpu == 1 && other.cpu == 1;
    const auto& events =
        is_same ? step.trace.events : faster.emplace_back(FasterEvents(step, other));
    others.push_back({other.hardware.Links(), events});
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      simulation::RepeatedStep simulated,
      simulation::SimulateStep(step.trace, options, execution.observe, others));
  StepCost cost = Alone(step);
  cost.seconds = simulated.step.seconds;
  cost.waiting_seconds = simulated.step.stall_seconds;
  cost.bytes = simulated.step.bytes;
  cost.planned_bytes = simulated.planned_bytes;
  cost.steps = simulated.steps;
  cost.repeats = simulated.repeats;
  cost.not_planned = std::move(simulated.not_planned);
  cost.update_at_seconds = simulated.step.mark_seconds;
  cost.timeline = Named(std::move(simulated.timeline), question, step.tensors);
  for (const simulation::StepResult& other : simulated.others) cost.others.push_back(other.seconds);
  for (size_t tier = 0; tier < kNumTiers; ++tier)
    for (size_t role = 0; role < kNumRoles; ++role)
      cost.fullest[tier][role] = simulated.stats.role_tiers[role][tier].peak_bytes;
  const plan::Rates rates = options.machine.Rates();
  AddLinks(rates, &cost);
  if (!execution.is_quick) AddBounds(step.trace, options.budgets, rates, /*is_quick=*/false, &cost);
  return cost;
}

absl::StatusOr<QuickStep> QuickStep::Make(const Question& question, const Fit& fit) {
  QuickStep quick;
  hf::ModelConfig config = question.config();
  trainer::ModelOptions options = question.options;
  const plan::PlanOptions budgets = BudgetsOf(question, fit);
  MergeMicroBatches(config, budgets.device_bytes, &options);
  const LargeTiles tiles = ChooseLargeTiles(question, budgets, options.accumulate);
  const int64_t own = trainer::TilesOf(trainer::Describe(config), options).values;
  options.tiles = tiles.sizes;
  if (tiles.layers < config.num_layers) {
    quick.layers_share_ =
        static_cast<double>(tiles.layers) / static_cast<double>(config.num_layers);
    config.num_layers = tiles.layers;
    if (!config.windows.empty()) config.windows.resize(static_cast<size_t>(tiles.layers));
  }
  SPILLWAY_ASSIGN_OR_RETURN(quick.step_,
                            TimeStep(config, options, question.placement, question.rates(), own));
  LeaveOutSmallTiles(&quick.step_);
  return quick;
}

absl::StatusOr<StepCost> QuickStep::Cost(const Question& question, const Fit& fit, bool with_bound,
                                         std::vector<FasterMachine> others,
                                         uint64_t timeline_events) const {
  if (layers_share_ == 1) {
    SPILLWAY_ASSIGN_OR_RETURN(StepCost cost, CostOf(question, fit, step_,
                                                    {.is_quick = true,
                                                     .timeline_events = timeline_events,
                                                     .others = std::move(others)}));
    if (!with_bound) return cost;
    AddBounds(step_.trace, BudgetsOf(question, fit), question.hardware.Links().Rates(),
              /*is_quick=*/true, &cost);
    return cost;
  }
  StepCost cost = BoundOf(question, fit, step_, layers_share_);
  for (const FasterMachine& other : others) {
    Question faster = question;
    faster.hardware = other.hardware;
    TimedStep step = step_;
    step.trace.events = FasterEvents(step_, other);
    step.forward_seconds /= other.gpu;
    step.backward_seconds /= other.gpu;
    step.update_seconds = step.device_update_seconds / other.gpu +
                          (step.update_seconds - step.device_update_seconds) / other.cpu;
    cost.others.push_back(BoundOf(faster, fit, step, layers_share_).seconds);
  }
  return cost;
}

}  // namespace spillway::command
