// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/flush.h"

#include <optional>
#include <utility>

namespace spillway::engine {
namespace {

constexpr size_t kSmallTogether = 64;

}  // namespace

// --- A commit ---

void Flush::Begin(Ticket ticket) {
  ticket_ = ticket;
  cursor_ = 0;
  gathers_ = true;
  status_ = absl::OkStatus();
}

bool Flush::Stop(Ticket ticket) {
  if (!is_active() || ticket != ticket_) return false;
  status_.Update(absl::CancelledError("Commit was interrupted: the last commit is the one before"));
  return true;
}

void Flush::AddJobs(bool waits_for_transfers) {
  if (!is_active() || !status_.ok()) return;
  AddCommitJobs();
  const bool gathered = gathers_ && cursor_ == pages_.num_tiles() &&
                        jobs_.of(Job::Kind::kFlush).empty() && !waits_for_transfers;
  if (!gathered) return;
  gathers_ = false;
  cursor_ = 0;
  AddCommitJobs();
}

void Flush::AddCommitJobs() {
  const size_t limit =
      gathers_ ? static_cast<size_t>(pages_.options().max_flushes) : kSmallTogether;
  while (cursor_ < pages_.num_tiles() && jobs_.of(Job::Kind::kFlush).size() < limit) {
    const std::optional<TileIndex> tile = pages_.to_commit().Next(cursor_);
    cursor_ = tile ? *tile + 1 : pages_.num_tiles();
    if (tile) jobs_.Add(Job::Kind::kFlush, *tile, Tier::kPinned).ticket = ticket_;
  }
}

bool Flush::Finish() {
  if (!is_active() || !jobs_.of(Job::Kind::kFlush).empty()) return false;
  if (status_.ok() && (gathers_ || cursor_ < pages_.num_tiles())) return false;
  // On success, the writes that had failed before have succeeded since. On failure the caller
  // receives the first failure now, and the next commit tries all of these writes again.
  if (!absl::IsCancelled(status_)) pages_.failures().CommitEnded();
  pages_.actions().push_back({.kind = status_.ok() ? Action::Kind::kGrant : Action::Kind::kFail,
                              .ticket = std::exchange(ticket_, kNoTicket),
                              .status = status_});
  return true;
}

Outcome Flush::Advance(Job& job) {
  const Page& page = pages_[job.tile];
  const bool for_commit = job.ticket != kNoTicket;
  if (!job.failure.ok()) {
    if (for_commit) status_.Update(job.failure);
    return Outcome::kDone;
  }
  if (for_commit && !status_.ok()) return Outcome::kDone;
  if (page.written_before_copy) return for_commit ? Outcome::kWaiting : Outcome::kDone;
  if (page.stored || page.zero) return Outcome::kDone;
  if (page.is_moving()) return Outcome::kWaiting;
  if (pages_.leases().IsWritten(job.tile)) return for_commit ? Outcome::kWaiting : Outcome::kDone;
  const MoveReason reason = for_commit ? MoveReason::kCommit : MoveReason::kWriteBehind;
  if (page.is_ready(Tier::kPinned)) {
    if (page.copy(Tier::kPinned).leaving) return Outcome::kWaiting;
    if (for_commit && gathers_ && page.tile->is_small) return Outcome::kDone;
    transfers_.Start(job.tile, Transfer::kWrite, reason, &job);
    return Outcome::kProgress;
  }
  absl::Status why;
  switch (room_.EnsureFrame(job, Tier::kPinned, 0, &why)) {
    case Room::Answer::kWaiting: return Outcome::kWaiting;
    case Room::Answer::kImpossible: job.failure = why; return Outcome::kProgress;
    case Room::Answer::kReady: break;
  }
  transfers_.Start(job.tile, Transfer::kCopyOut, reason, &job);
  return Outcome::kProgress;
}

// --- Ahead of need ---

void Flush::MarkWritten(TileIndex tile) {
  Page& page = pages_[tile];
  // A tile whose role has a placement keeps its frame, or is written when it leaves.
  const bool is_needless = !pages_.options().has_store || page.tile->transient || page.tile->rest;
  if (is_needless || std::exchange(page.queued, true)) return;
  (page.tile->is_small ? small_written_ : written_).push_back(tile);
}

void Flush::StartWriteBehind() {
  if (pages_.AllFit() || !pages_.failures().MayWriteUnasked() || is_active()) return;
  if (transfers_.small_leaves()) TakeWritten(small_written_, kSmallTogether);
  const ArenaMap& pinned = pages_.arena(Tier::kPinned);
  if (pinned.used_bytes() < pinned.size_bytes() / 2) return;
  TakeWritten(written_, static_cast<size_t>(pages_.options().max_flushes));
}

void Flush::TakeWritten(std::deque<TileIndex>& written, size_t max_flushes) {
  for (size_t looked = 0; looked < max_flushes && !written.empty(); ++looked) {
    if (jobs_.of(Job::Kind::kFlush).size() >= max_flushes) return;
    const TileIndex tile = written.front();
    written.pop_front();
    Page& page = pages_[tile];
    page.queued = false;
    const Leases& leases = pages_.leases();
    if (page.stored || page.zero || leases.IsWritten(tile) || !page.is_ready(Tier::kPinned))
      continue;
    if (page.is_moving() || leases.IsLeased(tile)) {
      MarkWritten(tile);
      continue;
    }
    if (!page.copy(Tier::kPinned).leaving) jobs_.Add(Job::Kind::kFlush, tile, Tier::kPinned);
  }
}

void Flush::Reset() {
  written_.clear();
  small_written_.clear();
}

}  // namespace spillway::engine
