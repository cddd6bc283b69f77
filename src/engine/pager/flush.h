// SPDX-License-Identifier: Apache-2.0
//
// What is written to NVMe without leaving its tier: all that a commit needs, and, ahead of need,
// the tiles that were written longest ago, so that their room is clean when it is wanted.
//
// Small tiles go together, so that PageIo packs them: what it gets in one pump, it writes in one
// request. A commit writes them last, all at once; at other times none is written before one must
// leave, and then others go along.

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
  // Every tile that a commit holds and NVMe has not is written; Finish ends the ticket.
  void Begin(Ticket ticket);
  bool is_active() const { return ticket_ != kNoTicket; }
  // Begins no more writes for the ticket, which fails with Cancelled. False: it is no commit's.
  bool Stop(Ticket ticket);
  // Adds jobs for it. `waits_for_transfers`: a plan has some under way, whose tiles may go with the
  // others.
  void AddJobs(bool waits_for_transfers);
  // Whether it ended just now.
  bool Finish();

  // --- Ahead of need ---
  // The tile has newer bytes in pinned memory than NVMe has.
  void MarkWritten(TileIndex tile);
  // Adds jobs for the tiles that were written longest ago, once pinned memory is half full. Where
  // all tiles have room none is written but by commits: it would only be written again.
  void StartWriteBehind();

  Outcome Advance(Job& job);
  // What was written is forgotten. REQUIRES: no job, and no commit.
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
  bool gathers_ = false;  // small tiles are only brought to pinned memory yet
  absl::Status status_;
  // Tiles written since they were last stored, oldest first.
  std::deque<TileIndex> written_;
  std::deque<TileIndex> small_written_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_FLUSH_H_
