// SPDX-License-Identifier: Apache-2.0
//
// What the mover tells a timeline.

#include <algorithm>
#include <utility>

#include "src/base/clock.h"
#include "src/engine/mover.h"

namespace spillway::engine {

namespace {

Traffic operator-(const Traffic& after, const Traffic& before) {
  return {after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes};
}

}  // namespace

void Mover::BeginCommit() {
  if (recorder_ == nullptr) return;
  const Entry entry(this);
  recorder_->BeginCommit(base::NowNs());
}

void Mover::EndCommit() {
  if (recorder_ == nullptr) return;
  const Entry entry(this);
  recorder_->EndCommit(base::NowNs());
}

// What has changed with an event: how full the tiers are, and what callers wait for.
void Mover::RecordState() {
  const int64_t now = base::NowNs();
  const EngineStats& stats = pager_.pages().stats();
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    recorder_->Occupied(tier, stats.tiers[static_cast<size_t>(tier)].now_bytes, now);
  }
  if (parts_.store != nullptr) recorder_->Occupied(Tier::kNvme, store_room_.now_bytes, now);
  for (const Ticket ticket : recorder_->Waiting()) {
    if (const auto stall = pager_.WhyWaits(ticket)) recorder_->Explain(ticket, *stall, now);
  }
}

Timeline Mover::TakeTimeline() {
  if (recorder_ == nullptr) return {};
  const Entry entry(this);
  Timeline timeline = recorder_->Take(base::NowNs());
  const EngineStats& stats = pager_.pages().stats();
  timeline.nvme = stats.nvme - std::exchange(recorded_nvme_, stats.nvme);
  timeline.pinned = stats.pinned - std::exchange(recorded_pinned_, stats.pinned);
  return timeline;
}

// The thread slept from `sleep_ns` until now, but for the last `cpu_ns`, in which it took in what
// had come.
void Mover::RecordWork(int64_t sleep_ns, int64_t cpu_ns) {
  recorder_->Work(working_since_ns_, sleep_ns);
  working_since_ns_ = std::max(sleep_ns, base::NowNs() - cpu_ns);
}

}  // namespace spillway::engine
