// SPDX-License-Identifier: Apache-2.0
//
// The part of Mover that carries out what Pager decides.

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/clock.h"
#include "src/engine/mover.h"

namespace spillway::engine {

using base::MutexLock;

Mover::~Mover() {
  if (plans_ != nullptr) plans_->Stop();  // its thread ends while the transfers do
  {
    const Entry entry(this);
    pager_.Stop();
    while (!IsQuiet()) quiet_.Wait(&mu_);
  }
  transfers_.Stop();
}

absl::Status Mover::WaitFor(CallerWaits::Request* request, TileIndex tile) {
  Dispatch(Wake::kAtExit);
  const bool recorded = recorder_ != nullptr && tile != TimelineEvent::kNoTile;
  if (request->is_answered) {
    if (recorded && request->status.ok()) recorder_->Grant(tile, base::NowNs());
    return request->status;
  }
  if (recorded) {
    const std::optional<Stall> stall = pager_.WhyWaits(request->ticket);
    recorder_->BeginWait(request->ticket, tile, stall.value_or(Stall{.tile = tile}), base::NowNs());
  }
  std::function<void()> wake;
  if (std::exchange(wakes_, false)) wake = [this] { transfers_.Wake(); };
  if (!waits_.Wait(request, &mu_, wake)) {
    pager_.Withdraw(request->ticket);
    Dispatch();
    waits_.WaitOut(request, &mu_);
  }
  if (recorded) recorder_->EndWait(request->ticket, base::NowNs());
  return request->status;
}

// Carries out the pager's actions: answers failures, and grants that wait for no copy, at once, and
// posts the rest to the transfer thread.
void Mover::Dispatch(Wake wake) {
  for (Action& action : pager_.TakeActions()) {
    const bool at_once = action.kind == Action::Kind::kFail ||
                         (action.kind == Action::Kind::kGrant && !action.after_copy);
    if (at_once) {
      waits_.Answer(std::move(action), {});
    } else {
      if (action.kind == Action::Kind::kRunAgain) ++runs_again_;
      const Tile* const tile = &tiles_[action.tile];
      work_.push_back({std::move(action), tile});
    }
  }
  waits_.SetMoving(pager_.transfers_in_flight() > 0);
  if (recorder_ != nullptr) RecordState();
  if (!work_.empty()) wakes_ |= transfers_.Post(&work_);
  if (wake == Wake::kNow && std::exchange(wakes_, false)) transfers_.Wake();
  if (IsQuiet()) quiet_.NotifyAll();
}

// --- The transfer thread's side ---

absl::Status Mover::WithTile(TileIndex tile, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(describe_(tile), ": ", status.message()));
}

void Mover::OnEnded(std::span<const TransferThread::TransferEnd> transfers) {
  const Entry entry(this);
  if (transfers.empty()) --runs_again_;
  for (const auto& [tile, status] : transfers) {
    if (recorder_ != nullptr) {
      recorder_->EndTransfer(tile, pager_.pages()[tile].size_bytes(), status.ok(), base::NowNs());
    }
    pager_.TransferDone(tile, WithTile(tile, status));
  }
  Dispatch();
  transfers_ended_.NotifyAll();
}

void Mover::OnLaunched(const Action& grant, absl::Status status, tiers::EventHandle arrival) {
  Action done = grant;
  MutexLock lock(&mu_);
  if (!status.ok()) {
    done.status = WithTile(grant.tile, status);
    pager_.NoteReported(done.status);
  }
  waits_.Answer(std::move(done), arrival);
}

void Mover::OnIdle() {
  MutexLock lock(&mu_);
  if (IsQuiet()) quiet_.NotifyAll();
}

}  // namespace spillway::engine
