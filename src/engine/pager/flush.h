// SPDX-License-Identifier: Apache-2.0
//
// Writes tiles to NVMe that keep their frames: all that a commit needs, and, as write-behind, the
// tiles that were modified longest ago, so that their frames are clean when room is needed. Frames
// and evictions are left to room.h.
//
// Small tiles are written together, since PageIo packs those that it receives in one pump into one
// request. A commit writes them last, in groups. Write-behind writes none until a small tile must
// leave, and then writes others with it.

#ifndef SPILLWAY_ENGINE_PAGER_FLUSH_H_
#define SPILLWAY_ENGINE_PAGER_FLUSH_H_

#include <cstddef>
#include <deque>

#include "absl/status/status.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"
#include "src/engine/pager/room.h"
#include "src/engine/pager/transfers.h"

namespace spillway::engine {

class Flush {
 public:
  Flush(PageTable* pages, Transfers* transfers, Jobs* jobs, Room* room)
      : pages_(*pages), transfers_(*transfers), jobs_(*jobs), room_(*room) {}

  // --- A commit ---
  // Starts a commit: every tile that belongs to it and is not stored on NVMe is written. Finish
  // ends the ticket.
  void Begin(Ticket ticket);
  bool is_active() const { return ticket_ != kNoTicket; }
  // Starts no more writes for the ticket, which fails with Cancelled. Returns false if the ticket
  // is not that of the commit in progress.
  bool Stop(Ticket ticket);
  // Fails the commit in progress, if there is one, because bytes of it are lost.
  void Fail(const absl::Status& status) {
    if (is_active()) status_.Update(status);
  }
  // Adds jobs for the commit. `waits_for_transfers`: a plan has transfers in flight; small tiles
  // are written only after these, since the tiles that they move may be written together with the
  // rest.
  void AddJobs(bool waits_for_transfers);
  // Ends the commit's ticket if nothing is left to write. Returns whether it did.
  bool Finish();

  // --- Ahead of need ---
  // Records for write-behind that the tile has newer bytes in pinned memory than on NVMe.
  void MarkWritten(TileIndex tile);
  // Adds jobs for the tiles that were modified longest ago, once pinned memory is half full. If all
  // tiles fit in pinned memory, only commits write: a tile that is written earlier would only be
  // modified and written again.
  void StartWriteBehind();

  Outcome Advance(Job& job);
  // Forgets the tiles that MarkWritten recorded. REQUIRES: no job, and no commit in progress.
  void Reset();

 private:
  void AddCommitJobs();
  void TakeWritten(std::deque<TileIndex>& written, size_t max_flushes);

  PageTable& pages_;
  Transfers& transfers_;
  Jobs& jobs_;
  Room& room_;
  Ticket ticket_ = kNoTicket;
  TileIndex cursor_ = 0;
  bool gathers_ = false;  // first pass: small tiles are brought to pinned memory, not yet written
  absl::Status status_;
  // Tiles modified since they were last stored, oldest first.
  std::deque<TileIndex> written_;
  std::deque<TileIndex> small_written_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_FLUSH_H_
