// SPDX-License-Identifier: Apache-2.0
//
// The part of Mover that records and returns the timeline.

#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/engine/mover.h"

namespace spillway::engine {

namespace {

Traffic operator-(const Traffic& after, const Traffic& before) {
  return {after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes};
}

}  // namespace

// Records what an event may have changed: how full the tiers are, and why callers wait.
void Mover::RecordState() {
  const int64_t now = base::NowNs();
  const EngineStats& stats = pager_.pages().stats();
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    recorder_->Occupied(tier, stats.tiers[static_cast<size_t>(tier)].now_bytes, now);
  }
  if (transfers_.has_store())
    recorder_->Occupied(Tier::kNvme, transfers_.store_room().now_bytes, now);
  for (const Ticket ticket : recorder_->Waiting()) {
    if (const auto stall = pager_.WhyWaits(ticket)) recorder_->Explain(ticket, *stall, now);
  }
}

Timeline Mover::TakeTimeline() {
  if (timeline_events_ == 0) return {};
  // Made before the lock is taken: it may be large.
  std::vector<TimelineEvent> room = TimelineRecorder::RoomFor(timeline_events_);
  const Entry entry(this);
  Timeline timeline = recorder_->Take(base::NowNs(), std::move(room));
  const EngineStats& stats = pager_.pages().stats();
  timeline.nvme = stats.nvme - std::exchange(recorded_nvme_, stats.nvme);
  timeline.pinned = stats.pinned - std::exchange(recorded_pinned_, stats.pinned);
  return timeline;
}

void Mover::OnBegin(const Action& transfer) {
  const Entry entry(this);
  recorder_->BeginTransfer(transfer, base::NowNs());
}

void Mover::OnWorked(int64_t begin_ns, int64_t end_ns) {
  const Entry entry(this);
  recorder_->Work(begin_ns, end_ns);
}

}  // namespace spillway::engine
