// SPDX-License-Identifier: Apache-2.0

#include "src/engine/mover.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/clock.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"

namespace spillway::engine {

absl::StatusOr<std::unique_ptr<Mover>> Mover::Create(MoverParts parts, PagerOptions options,
                                                     plan::ChooseRetained* choose_retained) {
  if (parts.store != nullptr) options.small_bytes = io::PackedBytes(parts.store->page_bytes());
  std::optional<plan::PlanOptions> budgets;
  if (choose_retained != nullptr) {
    budgets = {.device_bytes = parts.device_bytes,
               .pinned_bytes = parts.pinned->size_bytes(),
               .has_store = parts.store != nullptr,
               .choose_retained = choose_retained,
               .frame_alignment = kFrameAlignment};
  }
  const uint64_t timeline_events = parts.timeline_events;
  std::unique_ptr<Mover> mover;
  try {
    mover.reset(new Mover(std::move(parts), std::move(options), budgets));
  } catch (const std::bad_alloc&) {
    if (timeline_events == 0) throw;
    return absl::ResourceExhaustedError(
        absl::StrCat("this process may not have the memory for ", timeline_events,
                     " events of a timeline (EngineOptions::timeline_events): record fewer"));
  }
  SPILLWAY_RETURN_IF_ERROR(mover->transfers().Start());
  return mover;
}

Mover::Mover(MoverParts parts, PagerOptions options,
             const std::optional<plan::PlanOptions>& budgets)
    : describe_(options.describe),
      placement_(options.placement),
      small_bytes_(options.small_bytes),
      budgets_(budgets),
      timeline_events_(parts.timeline_events),
      recorder_(timeline_events_ > 0
                    ? std::make_unique<TimelineRecorder>(timeline_events_, base::NowNs())
                    : nullptr),
      pager_(std::move(options)),
      tiles_(pager_.pages().tiles()),
      plans_(budgets ? std::make_unique<PlanService>(*budgets) : nullptr),
      planner_(budgets.value_or(plan::PlanOptions{}), &tiles_, plans_.get()),
      transfers_(std::move(parts), this) {}

// --- Leases ---

TileIndex Mover::AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                         StorePlace place) {
  const Entry entry(this);
  const TileIndex tile = pager_.AddTile(size_bytes, role, transient, stored, place);
  planner_.AddTile(tile, base::Now());
  return tile;
}

absl::Status Mover::Reserve(TileIndex tile) {
  if (!tiles_[tile].has_reserved_frame()) return absl::OkStatus();
  const Entry entry(this);
  SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
  CallerWaits::Request request(&waits_);
  pager_.Reserve(request.ticket, tile);
  return WaitFor(&request, TimelineEvent::kNoTile);
}

absl::Status Mover::WaitToUse(TileIndex tile) {
  SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
  if (!pager_.pages()[tile].is_gone) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(describe_(tile), " was unregistered: its id is void"));
}

absl::StatusOr<Grant> Mover::Acquire(TileIndex tile, Tier tier, Access access, StreamId stream) {
  Grant granted;
  uint64_t frame_offset = 0, frame_bytes = 0;
  bool was_stored = false;
  {
    const Entry entry(this);
    SPILLWAY_RETURN_IF_ERROR(WaitToUse(tile));
    SPILLWAY_RETURN_IF_ERROR(pager_.TakeWriteError());
    CallerWaits::Request request(&waits_);
    plan::StepRecorder* const trace = planner_.Recording();
    const double asked = trace != nullptr ? base::Now() : 0;
    pager_.Acquire(request.ticket, tile, tier, access, stream);
    if (absl::Status status = WaitFor(&request, tile); !status.ok()) {
      if (request.is_leased) pager_.EndLease(tile, tier, access, /*drained=*/false);
      Dispatch();
      return status;
    }
    // Recording() is null by now if the trace has grown too long while this caller waited.
    if (trace != nullptr && planner_.Recording() != nullptr)
      trace->Acquire(tile, tier, access, asked, base::Now());
    granted.data = transfers().arena(tier) + pager_.pages()[tile].copy(tier).offset;
    granted.arrival = request.arrival;
    frame_offset = pager_.pages()[tile].copy(Tier::kPinned).offset;
    frame_bytes = pager_.pages()[tile].size_bytes();
    was_stored = request.was_stored;
  }
  if (tier != Tier::kPinned) return granted;
  absl::Status status = transfers().PrepareFrame(frame_offset, frame_bytes);
  if (status.ok()) return granted;
  if (Writes(access)) {
    GiveUp(tile, access, was_stored);
    return status;
  }
  const Entry entry(this);
  End(tile, tier, access, /*drained=*/false);
  return status;
}

void Mover::EndLease(TileIndex tile, Tier tier, Access access, const tiers::StreamHandle* stream) {
  if (stream != nullptr) {
    {
      const Entry entry(this);
      if (auto* trace = planner_.Recording()) trace->Release(tile, tier, access, base::Now());
      pager_.BeginDrain(tile, tier, access, stream->value);
      ++drains_;
      // A caller on the same stream need not wait until the lease has drained.
      if (pager_.IsAwaited(tile)) Dispatch(Wake::kAtExit);
    }
    // Runs even if the wait for the work failed: Commit reports that.
    auto drained = [this, tile, tier, access](const absl::Status& ended) {
      if (!ended.ok()) transfers().NoteFailedWait(ended);
      const Entry entry(this);
      --drains_;
      quiet_.NotifyAll();
      End(tile, tier, access, /*drained=*/true);
    };
    if (transfers().runtime().Notify(*stream, drained).ok()) return;
    transfers().WaitFor(*stream);
    drained(absl::OkStatus());
    return;
  }
  const Entry entry(this);
  End(tile, tier, access, /*drained=*/false);
}

void Mover::End(TileIndex tile, Tier tier, Access access, bool drained) {
  plan::StepRecorder* const trace = drained ? nullptr : planner_.Recording();
  if (trace != nullptr) trace->Release(tile, tier, access, base::Now());
  pager_.EndLease(tile, tier, access, drained);
  // When a lease has drained, a thread of the device's calls this, perhaps while the engine closes.
  Dispatch(drained ? Wake::kNow : Wake::kAtExit);
}

void Mover::GiveUp(TileIndex tile, Access access, bool was_stored) {
  const Entry entry(this);
  if (auto* trace = planner_.Recording()) trace->Release(tile, Tier::kPinned, access, base::Now());
  pager_.GiveUp(tile, access);
  if (!was_stored) (void)pager_.Discard(tile);  // no lease is left, so it does not fail
  Dispatch();
}

absl::Status Mover::Declare(std::span<const TileIndex> tiles, std::span<const Use> uses) {
  constexpr size_t kAtOnce = 256;  // leases must not wait until a long list is declared
  for (size_t i = 0; i < uses.size();) {
    const Entry entry(this);
    SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
    for (const size_t end = std::min(uses.size(), i + kAtOnce); i < end; ++i) {
      if (pager_.pages()[tiles[i]].is_gone) continue;
      pager_.Declare(tiles[i], uses[i].tier, uses[i].access);
    }
    Dispatch();
  }
  return absl::OkStatus();
}

void Mover::ClearDeclared() {
  const Entry entry(this);
  pager_.ClearDeclared();
}

absl::Status Mover::Evict(TileIndex tile) {
  const Entry entry(this);
  SPILLWAY_RETURN_IF_ERROR(WaitToUse(tile));
  SPILLWAY_RETURN_IF_ERROR(pager_.Evict(tile));
  Dispatch();
  return absl::OkStatus();
}

absl::Status Mover::Discard(TileIndex tile) {
  const base::Uninterrupted to_its_end;
  const Entry entry(this);
  SPILLWAY_RETURN_IF_ERROR(WaitToUse(tile));
  SPILLWAY_RETURN_IF_ERROR(pager_.Discard(tile));
  if (auto* trace = planner_.Recording()) trace->Discard(tile, base::Now());
  Dispatch();
  return absl::OkStatus();
}

absl::Status Mover::EndStep() {
  if (plans_ != nullptr) plans_->Start();
  const Entry entry(this);
  SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
  if (plans_ != nullptr) {
    const uint64_t run_before = pager_.plan().run();
    pager_.plan().EndStep();
    absl::Status planned = planner_.EndStep(base::Now());
    planned.Update(TakeUpPlan());
    // A step that cannot be planned is served on demand, and the stats report why.
    not_planned_ = std::string(planned.message());
    rates_.EndStep(transfers().link_use());
    // A plan that goes on has nothing new to move.
    if (pager_.plan().run() != run_before) Dispatch();
  }
  return pager_.TakeWriteError();
}

absl::Status Mover::TakeUpPlan() {
  while (true) {
    const auto next = planner_.Next(pager_.pages().Now());
    if (next.ok() && next->get() == pager_.plan().followed()) return absl::OkStatus();
    pager_.plan().Abandon(/*deviated=*/false);
    // A plan can be started only when no lease is left, not even one that waits for a stream. If
    // another caller is in the next step already, a later EndStep starts the plan.
    if (!next.ok() || *next == nullptr || pager_.has_callers()) return next.status();
    if (drains_ == 0) {
      pager_.plan().Follow(*next);
      return absl::OkStatus();
    }
    quiet_.Wait(&mu_);
    // This wait cannot be cancelled: the step has ended, and the plan was handed over.
    const base::Uninterrupted to_its_end;
    SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
  }
}

absl::Status Mover::WaitForPlan() {
  for (int stale = 0; stale < kMostStalePlans && plans_ != nullptr && plans_->is_busy(); ++stale) {
    const double begin = base::Now();
    SPILLWAY_RETURN_IF_ERROR(plans_->Wait());
    const Entry entry(this);
    SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
    if (!planner_.is_between_steps() || pager_.has_callers()) return absl::OkStatus();
    if (plan::StepRecorder* const trace = planner_.Recording()) trace->LeaveOut(begin, base::Now());
    const absl::Status planned = TakeUpPlan();
    not_planned_ = std::string(planned.message());
    Dispatch();
  }
  return absl::OkStatus();
}

// --- Statistics ---

EngineStats Mover::Stats() {
  EngineStats stats;
  const double begin = base::Now();
  StepPlanner::LastStep last;
  std::shared_ptr<const PlanFollower> followed;
  plan::Rates rates;
  {
    const Entry entry(this);
    stats = pager_.pages().stats();
    stats.acquire_waits = waits_.num_waits();
    stats.plan.not_planned = not_planned_;
    stats.plan.plans = planner_.plans_made();
    last = planner_.last_step();
    followed = pager_.plan().last_followed();
    rates = rates_.rates();
    const OverlapMeter& meter = waits_.meter();
    stats.io_seconds = meter.io_seconds();
    stats.hidden_seconds = meter.hidden_seconds();
    stats.stall_seconds = meter.stall_seconds();
    if (transfers().has_store())
      stats.tiers[static_cast<size_t>(Tier::kNvme)] = transfers().store_room();
  }
  if (plans_ == nullptr) return stats;
  // Bounds are slow, so they are computed without the lock.
  try {
    if (followed != nullptr) {
      const plan::BytesBound& bytes = followed->Bound().bytes();
      stats.plan.bytes_bound = bytes.total();
      stats.plan.nvme_bytes_bound = bytes.nvme;
    }
    const TimeBound bound = last.At(rates);
    stats.plan.time_bound_seconds = bound.seconds;
    stats.plan.compute_seconds = bound.computing;
    stats.plan.transfer_seconds = bound.transfers;
  } catch (const std::bad_alloc&) {
    stats.plan.time_bound_seconds = 0;  // bounds that there is no memory for are unknown
  }
  plans_->Free(std::move(followed));
  plans_->Free(std::move(last.plan));
  const Entry entry(this);
  plan::StepRecorder* const trace = planner_.Recording();
  if (trace != nullptr && planner_.is_between_steps()) trace->LeaveOut(begin, base::Now());
  return stats;
}

absl::StatusOr<RecordedStep> Mover::LastStep(size_t most_events) {
  StepPlanner::LastStep last;
  RecordedStep step;
  plan::TileBits with_bytes;
  TileIndex num_tiles = 0;
  {
    const Entry entry(this);
    last = planner_.last_step();
    with_bytes = pager_.pages().Now().with_bytes;
    num_tiles = tiles_.size();
    step.rates = rates_.rates();
  }
  if (plans_ != nullptr) plans_->Free(std::move(last.plan));
  if (last.events == nullptr) return absl::NotFoundError("the last step was not recorded");
  const auto num_events = last.events->Read([](const plan::EventLog& log) { return log.size(); });
  if (num_events > most_events) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the step has ", num_events, " events, more than ", most_events));
  }
  step.budgets = *budgets_;
  step.placement = placement_;
  step.small_bytes = small_bytes_;
  step.trace.events = last.events->Read([](const plan::EventLog& log) { return log.Events(); });
  step.trace.tiles.reserve(num_tiles);
  for (TileIndex tile = 0; tile < num_tiles; ++tile)
    step.trace.tiles.push_back(TileOfTrace(tiles_[tile], with_bytes[tile], /*all_fit=*/false));
  return step;
}

}  // namespace spillway::engine
