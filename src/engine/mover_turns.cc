// SPDX-License-Identifier: Apache-2.0
//
// The part of Mover for calls that need the engine, or a tensor, exclusively: commits, restores,
// and registering and unregistering tensors.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/clock.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/engine/mover.h"

namespace spillway::engine {

Mover::Turn::Turn(Mover* mover, Kind kind) : mover_(*mover), kind_(kind) {
  const Entry entry(mover);
  status_ = mover->WaitForTurn();
  if (!status_.ok()) return;
  if (kind_ == Kind::kAlone) {
    mover->has_turn_ = true;
  } else {
    ++mover->fills_;
  }
}

Mover::Turn::~Turn() {
  if (!status_.ok()) return;
  const Entry entry(&mover_);
  if (kind_ == Kind::kFills) {
    --mover_.fills_;
    return;
  }
  mover_.has_turn_ = false;
  mover_.turn_over_.NotifyAll();
}

absl::Status Mover::WaitForTurn() {
  if (!has_turn_) return absl::OkStatus();
  bool interrupted = false;
  while (has_turn_ && !interrupted) interrupted = base::WaitOrInterrupt(&turn_over_, &mu_);
  if (interrupted && has_turn_) {
    return absl::CancelledError(
        "the wait for another thread's Commit, Restore or Unregister was interrupted");
  }
  if (interrupted) base::PutBackInterrupt();
  return absl::OkStatus();
}

absl::Status Mover::Commit(const std::function<absl::Status(io::Store*)>& write) {
  const Turn turn(this, Turn::Kind::kAlone);
  SPILLWAY_RETURN_IF_ERROR(turn.status());
  const double begin = base::Now();
  absl::Status status;
  {
    const Entry entry(this);
    if (recorder_ != nullptr) recorder_->BeginCommit(base::NowNs());
    status = Flush();
  }
  if (status.ok()) transfers().RunWithStore([&](io::Store* store) { status = write(store); });
  const Entry entry(this);
  if (plan::StepRecorder* const trace = planner_.Recording()) trace->LeaveOut(begin, base::Now());
  if (recorder_ != nullptr) recorder_->EndCommit(base::NowNs());
  return status;
}

absl::Status Mover::Flush() {
  SPILLWAY_RETURN_IF_ERROR(transfers().CheckDevice());
  SPILLWAY_RETURN_IF_ERROR(WaitForStreams("Commit"));
  // The kernels that ended meanwhile may have failed, and bytes in pinned memory are not copied.
  SPILLWAY_RETURN_IF_ERROR(transfers().CheckDevice());
  SPILLWAY_RETURN_IF_ERROR(CheckIdle("Commit"));
  SPILLWAY_RETURN_IF_ERROR(pager_.TakeLostError());
  CallerWaits::Request request(&waits_);
  pager_.Commit(request.ticket);
  absl::Status status = WaitFor(&request, TimelineEvent::kNoTile);
  if (recorder_ != nullptr) recorder_->EndFlush(base::NowNs());
  return status;
}

namespace {

std::vector<std::string> LeaseNames(const PageTable& pages, size_t limit) {
  std::vector<std::string> names;
  for (TileIndex tile = 0; tile < pages.num_tiles() && names.size() < limit; ++tile) {
    if (pages.leases().IsLeased(tile)) names.push_back(pages.options().describe(tile));
  }
  return names;
}

absl::Status IsBusy(std::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what), " while another call leases: it needs the engine alone"));
}

absl::Status IsInterrupted(std::string_view what) {
  return absl::CancelledError(
      absl::StrCat(std::string(what), " was interrupted: no byte has changed"));
}

}  // namespace

absl::Status Mover::WaitForStreams(std::string_view what) {
  bool interrupted = false;
  while (drains_ > 0 && !pager_.has_callers() && !interrupted)
    interrupted = base::WaitOrInterrupt(&quiet_, &mu_);
  if (!interrupted) return absl::OkStatus();
  if (drains_ > 0) return IsInterrupted(what);
  base::PutBackInterrupt();
  return absl::OkStatus();
}

absl::Status Mover::CheckIdle(std::string_view what) {
  const absl::string_view operation(what.data(), what.size());
  if (pager_.pages().leases().num_held() > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        operation, " with ", base::FormatCount(pager_.pages().leases().num_held(), "lease"),
        " held (", absl::StrJoin(LeaseNames(pager_.pages(), 8), ", "), "): release them first"));
  }
  if (fills_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(operation, " while ", base::FormatCount(fills_, "tensor"),
                     " is being registered: call it when Register has returned"));
  }
  return pager_.in_use() ? IsBusy(what) : absl::OkStatus();
}

absl::Status Mover::CheckNoLeases(std::string_view what) {
  const Entry entry(this);
  do {
    SPILLWAY_RETURN_IF_ERROR(WaitForTurn());
    SPILLWAY_RETURN_IF_ERROR(WaitForStreams(what));
  } while (has_turn_);
  return CheckIdle(what);
}

absl::Status Mover::Quiesce(std::string_view what) {
  SPILLWAY_RETURN_IF_ERROR(WaitForStreams(what));
  SPILLWAY_RETURN_IF_ERROR(CheckIdle(what));
  pager_.Pause();
  Dispatch();
  bool interrupted = false;
  while (!IsQuiet() && !interrupted) interrupted = base::WaitOrInterrupt(&quiet_, &mu_);
  // The wait released the lock, so the engine may no longer be idle.
  absl::Status status = CheckIdle(what);
  if (interrupted && IsQuiet()) base::PutBackInterrupt();
  if (!IsQuiet()) status.Update(IsInterrupted(what));
  if (status.ok()) return status;
  pager_.Resume();
  Dispatch();
  return status;
}

absl::Status Mover::Forget(TileIndex first, TileIndex count, Stored stored,
                           const std::function<void(io::Store*)>& change) {
  const base::Uninterrupted to_its_end;
  const Turn turn(this, Turn::Kind::kAlone);
  SPILLWAY_RETURN_IF_ERROR(turn.status());
  {
    const Entry entry(this);
    const Leases& leases = pager_.pages().leases();
    for (TileIndex tile = first; tile < first + count; ++tile) {
      while (leases.IsLeased(tile) && !leases.HasHolder(tile)) quiet_.Wait(&mu_);
    }
    SPILLWAY_RETURN_IF_ERROR(pager_.Forget(first, count, stored));
    Dispatch();
    for (TileIndex tile = first; tile < first + count; ++tile)
      while (!pager_.pages()[tile].is_forgotten()) transfers_ended_.Wait(&mu_);
  }
  transfers().RunWithStore(change);
  return absl::OkStatus();
}

absl::Status Mover::Restore(const std::function<absl::Status(io::Store*)>& change) {
  const Turn turn(this, Turn::Kind::kAlone);
  SPILLWAY_RETURN_IF_ERROR(turn.status());
  TileIndex num_tiles = 0;
  {
    const Entry entry(this);
    SPILLWAY_RETURN_IF_ERROR(Quiesce("Restore"));
    num_tiles = pager_.pages().num_tiles();
  }
  absl::Status status;
  std::vector<bool> stored(num_tiles);
  transfers().RunWithStore([&](io::Store* store) {
    status = change(store);
    for (TileIndex tile = 0; status.ok() && tile < num_tiles; ++tile) {
      const StorePlace place = tiles_[tile].place;
      const auto page = store->FindPage(place.tensor, place.first_page);
      // If the store cannot tell, the tile counts as stored, and its next reader gets the error.
      stored[tile] = !page.ok() || page->has_value();
    }
  });
  const Entry entry(this);
  if (status.ok()) {
    pager_.Reset([&stored](TileIndex tile) { return stored[tile]; });
  } else {
    pager_.Resume();
  }
  Dispatch();
  return status;
}

}  // namespace spillway::engine
