// SPDX-License-Identifier: Apache-2.0
//
// The values that the pager and the mover exchange: names of requests and streams, the actions to
// carry out next, and why a caller waits.

#ifndef SPILLWAY_ENGINE_PAGER_ACTION_H_
#define SPILLWAY_ENGINE_PAGER_ACTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "spillway/timeline.h"
#include "spillway/types.h"
#include "src/engine/pager/arena_map.h"
#include "src/plan/transfer.h"

namespace spillway::engine {

using plan::Transfer;

using Ticket = uint64_t;  // names a caller's request; chosen by the caller
inline constexpr Ticket kNoTicket = 0;
// Names a stream; chosen by the caller. Work on one stream runs in order.
using StreamId = const void*;
inline constexpr StreamId kNoStream = nullptr;

// What becomes of the bytes that NVMe has of tiles that are forgotten for good. kKept: they were
// there before the tiles, and are found again when their tensor is registered again.
enum class Stored : uint8_t { kRemoved, kKept };

// What the mover does next. When a transfer has ended, the mover calls Pager::TransferDone for its
// tile. A kRunAgain is for no tile.
struct Action {
  enum class Kind : uint8_t {
    kTransfer,
    kForget,  // the NVMe copy is void: its extents may be freed
    kGrant,  // the ticket's lease is granted, or its commit's tiles are written; with `after_copy`,
             // the lease's bytes are there when the tile's kCopyIn ends
    kFail,   // the ticket's request fails with `status`
    kRunAgain,  // a run of the pump has reached its limits, and nothing is in flight: call
                // TakeActions again, after others have had the lock
  };
  Kind kind;
  Transfer transfer = Transfer::kRead;
  TileIndex tile = 0;
  uint64_t pinned_offset = 0;  // of a kTransfer's frames
  uint64_t device_offset = 0;
  Ticket ticket = kNoTicket;
  bool after_copy = false;
  bool was_stored = false;  // of a kGrant: NVMe has the bytes that the tile had before the lease
  absl::Status status = absl::OkStatus();
  MoveReason reason = MoveReason::kLease;  // of a kTransfer

  bool Is(Transfer which) const { return kind == Kind::kTransfer && transfer == which; }
};

// Why a caller waits. `tile` is the caller's own tile or the tile in its way, in `tier`.
struct Stall {
  StallCause cause = StallCause::kCopy;
  Tier tier = Tier::kDevice;
  TileIndex tile = TimelineEvent::kNoTile;
  friend bool operator==(const Stall&, const Stall&) = default;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ACTION_H_
