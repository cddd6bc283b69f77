// SPDX-License-Identifier: Apache-2.0

#include "src/simulation/virtual_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/tile_table.h"
#include "src/plan/make_plan.h"

namespace spillway::simulation {

using engine::Action;
using engine::TileIndex;
using plan::TraceEvent;

namespace {

Traffic Difference(const Traffic& after, const Traffic& before) {
  return {after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes};
}

engine::PagerOptions PagerOptionsOf(const SimulationOptions& options) {
  engine::PagerOptions paging;
  paging.device_bytes = options.budgets.device_bytes;
  paging.pinned_bytes = options.budgets.pinned_bytes;
  paging.has_store = options.budgets.has_store;
  paging.placement = options.placement;
  paging.small_bytes = options.small_bytes;
  paging.describe = [](TileIndex tile) { return absl::StrCat("tile ", tile); };
  return paging;
}

}  // namespace

SimulationOptions OptionsOf(const engine::RecordedStep& step) {
  SimulationOptions options;
  options.budgets = step.budgets;
  options.placement = step.placement;
  options.small_bytes = step.small_bytes;
  options.machine = MachineOf(step.rates);
  return options;
}

absl::StatusOr<std::unique_ptr<VirtualEngine>> VirtualEngine::Open(
    const std::vector<plan::TraceTile>& tiles, const SimulationOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(options.machine.Check());
  std::unique_ptr<VirtualEngine> engine(new VirtualEngine(options));
  for (const plan::TraceTile& tile : tiles) SPILLWAY_RETURN_IF_ERROR(engine->AddTile(tile));
  return engine;
}

VirtualEngine::VirtualEngine(const SimulationOptions& options)
    : budgets_(options.budgets),
      mark_event_(options.mark_event),
      pager_(PagerOptionsOf(options)),
      links_(options.machine),
      recorder_(options.timeline_events > 0
                    ? std::make_unique<engine::TimelineRecorder>(options.timeline_events, 0)
                    : nullptr) {}

absl::Status VirtualEngine::AddTile(const plan::TraceTile& tile) {
  const bool is_stored = tile.stored && budgets_.has_store;
  const TileIndex index = pager_.AddTile(tile.size_bytes, tile.role, tile.transient, is_stored);
  if (!pager_.pages().tiles()[index].has_reserved_frame()) return absl::OkStatus();
  is_granted_ = false;
  pager_.Reserve(++ticket_, index);
  return WaitForGrant();
}

absl::StatusOr<plan::LinkBytes> VirtualEngine::Plan(std::vector<TraceEvent> events) {
  const engine::TileTable& tiles = pager_.pages().tiles();
  const engine::TilesNow now = pager_.pages().Now();
  plan::Trace trace;
  trace.tiles.reserve(tiles.size());
  for (TileIndex tile = 0; tile < tiles.size(); ++tile)
    trace.tiles.push_back(engine::TileOfTrace(tiles[tile], now.with_bytes[tile], now.all_fit));
  trace.events = std::move(events);
  SPILLWAY_ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(trace, budgets_));
  const plan::LinkBytes bytes = plan.bytes;
  pager_.plan().Follow(
      std::make_shared<engine::PlanFollower>(engine::StepPlan{std::move(trace), std::move(plan)}));
  SPILLWAY_RETURN_IF_ERROR(Pump());
  return bytes;
}

absl::StatusOr<StepResult> VirtualEngine::Step(std::span<const TraceEvent> events) {
  step_ = {.begin_seconds = now_};
  for (size_t i = 0; i < events.size(); ++i) {
    const TraceEvent& event = events[i];
    if (i == mark_event_) step_.mark_seconds = now_ - step_.begin_seconds;
    step_.compute_seconds += event.seconds_before;
    SPILLWAY_RETURN_IF_ERROR(RunUntil(now_ + event.seconds_before));
    switch (event.kind) {
      case TraceEvent::Kind::kAcquire: SPILLWAY_RETURN_IF_ERROR(Acquire(event)); break;
      case TraceEvent::Kind::kRelease:
        pager_.EndLease(event.tile, event.tier, event.access, /*drained=*/false);
        SPILLWAY_RETURN_IF_ERROR(Pump());
        break;
      case TraceEvent::Kind::kDiscard:
        SPILLWAY_RETURN_IF_ERROR(pager_.Discard(event.tile));
        SPILLWAY_RETURN_IF_ERROR(Pump());
        break;
    }
  }
  pager_.plan().EndStep();
  SPILLWAY_RETURN_IF_ERROR(Pump());
  step_.seconds = now_ - step_.begin_seconds;
  return step_;
}

absl::Status VirtualEngine::Acquire(const TraceEvent& event) {
  is_granted_ = false;
  ++step_.leases;
  pager_.Acquire(++ticket_, event.tile, event.tier, event.access, engine::kNoStream);
  SPILLWAY_RETURN_IF_ERROR(Pump());
  if (is_granted_) {
    if (recorder_ != nullptr) recorder_->Grant(event.tile, NowNs());
    return absl::OkStatus();
  }
  ++step_.waits;
  if (recorder_ != nullptr) {
    const auto stall = pager_.WhyWaits(ticket_);
    recorder_->BeginWait(ticket_, event.tile, stall.value_or(engine::Stall{.tile = event.tile}),
                         NowNs());
  }
  const double begin = now_;
  SPILLWAY_RETURN_IF_ERROR(WaitForGrant());
  step_.stall_seconds += now_ - begin;
  if (recorder_ != nullptr) recorder_->EndWait(ticket_, NowNs());
  return absl::OkStatus();
}

absl::Status VirtualEngine::WaitForGrant() {
  if (!is_granted_) SPILLWAY_RETURN_IF_ERROR(Pump());
  while (!is_granted_) {
    if (!queue_.empty()) {
      SPILLWAY_RETURN_IF_ERROR(Next());
    } else if (runs_again_) {
      SPILLWAY_RETURN_IF_ERROR(Pump());
    } else {
      return absl::InternalError("a lease waits, and nothing moves");
    }
  }
  return absl::OkStatus();
}

absl::Status VirtualEngine::RunUntil(double then) {
  while (!queue_.empty() && queue_.top().at <= then) SPILLWAY_RETURN_IF_ERROR(Next());
  now_ = then;
  return absl::OkStatus();
}

// Goes on to the next event.
absl::Status VirtualEngine::Next() {
  const Event event = queue_.top();
  queue_.pop();
  now_ = std::max(now_, event.at);
  if (event.begins) {
    const Action begun = {.kind = Action::Kind::kTransfer,
                          .transfer = event.transfer,
                          .tile = event.tile,
                          .reason = event.reason};
    recorder_->BeginTransfer(begun, NowNs());
    return absl::OkStatus();
  }
  if (recorder_ != nullptr) {
    recorder_->EndTransfer(event.tile, pager_.pages()[event.tile].size_bytes(), /*ok=*/true,
                           NowNs());
  }
  pager_.TransferDone(event.tile, absl::OkStatus());
  return Pump();
}

absl::Status VirtualEngine::Pump() {
  runs_again_ = false;
  for (const Action& action : pager_.TakeActions()) {
    switch (action.kind) {
      case Action::Kind::kGrant: is_granted_ = true; break;
      case Action::Kind::kFail: return action.status;
      case Action::Kind::kRunAgain: runs_again_ = true; break;
      case Action::Kind::kForget: break;
      case Action::Kind::kTransfer: {
        Links::Span span = {now_, now_};
        if (plan::HasLink(action.transfer)) {
          const uint64_t size_bytes = pager_.pages()[action.tile].size_bytes();
          step_.bytes[action.transfer] += size_bytes;
          CountState(action, size_bytes);
          span = links_->Carry(action.transfer, size_bytes, now_);
        }
        const auto push = [&](double at, bool begins) {
          queue_.push({at, ++order_, action.tile, action.transfer, action.reason, begins});
        };
        if (recorder_ != nullptr) push(span.begin, /*begins=*/true);
        push(span.end, /*begins=*/false);
        break;
      }
    }
  }
  if (recorder_ != nullptr) Record();
  return absl::OkStatus();
}

// Records how full the tiers are, and why the caller waits.
void VirtualEngine::Record() {
  for (const Tier tier : {Tier::kDevice, Tier::kPinned})
    recorder_->Occupied(tier, stats().tiers[static_cast<size_t>(tier)].now_bytes, NowNs());
  for (const engine::Ticket ticket : recorder_->Waiting()) {
    if (const auto stall = pager_.WhyWaits(ticket)) recorder_->Explain(ticket, *stall, NowNs());
  }
}

void VirtualEngine::CountState(const Action& action, uint64_t size_bytes) {
  const Role role = pager_.pages()[action.tile].tile->role;
  if (role != Role::kMasterWeight && role != Role::kMoment) return;
  if (action.transfer == plan::Transfer::kRead) step_.state.read_bytes += size_bytes;
  if (action.transfer == plan::Transfer::kWrite) step_.state.written_bytes += size_bytes;
}

Timeline VirtualEngine::TakeTimeline() {
  if (recorder_ == nullptr) return {};
  Timeline timeline = recorder_->Take(NowNs());
  // What was under way when the record was taken before is shown from then on.
  for (TimelineEvent& event : timeline.events)
    event.begin_ns = std::max(event.begin_ns, timeline.begin_ns);
  timeline.nvme = Difference(stats().nvme, std::exchange(recorded_nvme_, stats().nvme));
  timeline.pinned = Difference(stats().pinned, std::exchange(recorded_pinned_, stats().pinned));
  return timeline;
}

namespace {

// Whether the same tiles have bytes at the end of a step as at its start.
bool KeepsItsTiles(const plan::Trace& trace) {
  std::vector<bool> has_bytes;
  for (const plan::TraceTile& tile : trace.tiles) has_bytes.push_back(tile.stored);
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEvent::Kind::kDiscard) has_bytes[event.tile] = false;
    if (event.kind == TraceEvent::Kind::kAcquire && Writes(event.access))
      has_bytes[event.tile] = true;
  }
  for (size_t tile = 0; tile < has_bytes.size(); ++tile)
    if (has_bytes[tile] != trace.tiles[tile].stored) return false;
  return true;
}

}  // namespace

absl::StatusOr<RepeatedStep> SimulateStep(const plan::Trace& trace,
                                          const SimulationOptions& options,
                                          const std::function<void(const StepResult&)>& observe,
                                          std::span<const OtherMachine> others) {
  SPILLWAY_ASSIGN_OR_RETURN(const auto engine, VirtualEngine::Open(trace.tiles, options));
  RepeatedStep result;
  // The first step is only recorded, as in an engine, unless the trace already tells which tiles
  // have bytes when a step starts. It begins with empty memory, so it is not what repeats.
  const int first_planned = KeepsItsTiles(trace) && options.budgets.has_store ? 0 : 1;
  while (result.steps < options.most_steps) {
    if (result.steps == first_planned && options.plans_steps) {
      const absl::StatusOr<plan::LinkBytes> planned = engine->Plan(trace.events);
      if (planned.ok()) result.planned_bytes = *planned;
      if (!planned.ok() && !absl::IsResourceExhausted(planned.status())) return planned.status();
      result.not_planned = std::string(planned.status().message());
    }
    if (result.steps < 2 || !observe) (void)engine->TakeTimeline();
    const StepResult before = result.step;
    SPILLWAY_ASSIGN_OR_RETURN(result.step, engine->Step(trace.events));
    ++result.steps;
    if (result.steps > 1 && observe) observe(result.step);
    result.repeats = result.steps > 2 && result.step.bytes == before.bytes &&
                     std::abs(result.step.seconds - before.seconds) <= before.seconds / 1000;
    if (result.repeats && options.ends_early) break;
  }
  result.timeline = engine->TakeTimeline();
  result.stats = engine->stats();
  for (const OtherMachine& other : others) {
    SPILLWAY_RETURN_IF_ERROR(other.machine.Check());
    engine->MoveTo(other.machine);
    SPILLWAY_RETURN_IF_ERROR(engine->Step(other.events).status());
    SPILLWAY_ASSIGN_OR_RETURN(result.others.emplace_back(), engine->Step(other.events));
  }
  return result;
}

}  // namespace spillway::simulation
