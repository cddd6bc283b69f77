// SPDX-License-Identifier: Apache-2.0
//
// Residency's way of tiles to NVMe that leave no tier: all that a commit needs, and, ahead of need,
// the oldest that were written, so that their room is clean when it is wanted.
//
// Small tiles go together, so that PageIo packs them: what it gets in one pump, it writes in one
// request. A flush writes them last, all at once; at other times none is written before one must
// leave, and then others go along.

#include <algorithm>
#include <utility>

#include "src/engine/residency.h"

namespace spillway::engine {
namespace {

constexpr size_t kSmallTogether = 64;

}  // namespace

void Residency::Flush(Ticket ticket) {
  flush_ticket_ = ticket;
  flush_cursor_ = 0;
  flush_gathers_ = true;
  flush_status_ = absl::OkStatus();
}

Residency::Outcome Residency::AdvanceFlush(Job& job) {
  Tile& tile = tiles_[job.tile];
  const bool for_commit = job.ticket != kNoTicket;
  if (!job.failure.ok()) {
    if (for_commit && flush_status_.ok()) flush_status_ = job.failure;
    return Outcome::kDone;
  }
  if (tile.stored || tile.zero) return Outcome::kDone;
  if (tile.transfer != Transfer::kNone) return Outcome::kWaiting;
  if (IsWritten(job.tile)) return for_commit ? Outcome::kWaiting : Outcome::kDone;
  if (Ready(tile, Tier::kPinned)) {
    if (copy(tile, Tier::kPinned).leaving) return Outcome::kWaiting;
    if (for_commit && flush_gathers_ && IsSmall(tile)) return Outcome::kDone;
    Start(job, Transfer::kWrite);
    return Outcome::kProgress;
  }
  absl::Status why;
  switch (EnsureFrame(job, Tier::kPinned, 0, &why)) {
    case Room::kWaiting: return Outcome::kWaiting;
    case Room::kImpossible: job.failure = why; return Outcome::kProgress;
    case Room::kReady: break;
  }
  Start(job, Transfer::kCopyOut);
  return Outcome::kProgress;
}

void Residency::StartFlushes() {
  if (flush_ticket_ == kNoTicket || !flush_status_.ok()) return;
  AddFlushes();
  // What a plan has begun may be of a tile that goes with the others.
  const bool gathered = flush_gathers_ && flush_cursor_ == tiles_.size() && flushes_.empty() &&
                        (!IsPlanPaused() || transfers_ == 0);
  if (!gathered) return;
  flush_gathers_ = false;
  flush_cursor_ = 0;
  AddFlushes();
}

void Residency::AddFlushes() {
  const size_t limit = flush_gathers_ ? static_cast<size_t>(options_.max_flushes) : kSmallTogether;
  while (flush_cursor_ < tiles_.size() && flushes_.size() < limit) {
    const TileIndex index = flush_cursor_++;
    const Tile& tile = tiles_[index];
    if (tile.transient || tile.zero || tile.stored) continue;
    AddJob(flushes_, Job::Kind::kFlush, index, Tier::kPinned).ticket = flush_ticket_;
  }
}

// Whether it ended just now.
bool Residency::FinishFlush() {
  if (flush_ticket_ == kNoTicket || !flushes_.empty()) return false;
  if (flush_status_.ok() && (flush_gathers_ || flush_cursor_ < tiles_.size())) return false;
  // Either the caller is told now, or what failed on the way has succeeded since.
  if (flush_status_.ok() || flush_status_ == write_error_) write_error_ = absl::OkStatus();
  actions_.push_back({.kind = flush_status_.ok() ? Action::Kind::kGrant : Action::Kind::kFail,
                      .ticket = std::exchange(flush_ticket_, kNoTicket),
                      .status = flush_status_});
  return true;
}

void Residency::MarkWritten(TileIndex index) {
  Tile& tile = tiles_[index];
  // What is placed stays, or is written as it leaves.
  const bool is_needless = !options_.has_store || tile.transient || tile.rest;
  if (is_needless || std::exchange(tile.queued, true)) return;
  (IsSmall(tile) ? small_written_ : written_).push_back(index);
}

// Writes the oldest tiles back before their room is needed, once pinned memory is half full. Where
// all tiles have room no byte is written but by commits: it would only be written again.
void Residency::StartWriteBehind() {
  if (AllFit()) return;
  if (writes_failing_ || paused_ || following_ || flush_ticket_ != kNoTicket) return;
  if (small_leaves_) TakeWritten(small_written_, kSmallTogether);
  if (arenas_[1].used_bytes() < arenas_[1].size_bytes() / 2) return;
  TakeWritten(written_, static_cast<size_t>(options_.max_flushes));
}

void Residency::TakeWritten(std::deque<TileIndex>& written, size_t max_flushes) {
  for (size_t looked = 0; looked < max_flushes && !written.empty(); ++looked) {
    if (flushes_.size() >= max_flushes) return;
    const TileIndex index = written.front();
    written.pop_front();
    Tile& tile = tiles_[index];
    tile.queued = false;
    if (tile.stored || tile.zero || IsWritten(index) || !Ready(tile, Tier::kPinned)) continue;
    if (tile.transfer != Transfer::kNone || IsLeased(index)) {
      MarkWritten(index);
      continue;
    }
    if (copy(tile, Tier::kPinned).leaving) continue;
    AddJob(flushes_, Job::Kind::kFlush, index, Tier::kPinned);
  }
}

}  // namespace spillway::engine
