// SPDX-License-Identifier: Apache-2.0
//
// What the pager and the mover say to each other: names of requests and streams, what is to be done
// next, and why a caller waits. Values.

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

// What to do next. Transfers end with Pager::TransferDone for their tile.
struct Action {
  enum class Kind : uint8_t {
    kTransfer,
    kForget,  // the NVMe copy is void: its extents may be freed
    kGrant,   // the ticket's lease is held; with `after_copy`, its bytes arrive with the tile's
              // kCopyIn
    kFail,    // the ticket ends with `status`
  };
  Kind kind;
  Transfer transfer = Transfer::kRead;
  TileIndex tile = 0;
  uint64_t pinned_offset = 0;
  uint64_t device_offset = 0;
  Ticket ticket = kNoTicket;
  bool after_copy = false;
  absl::Status status = absl::OkStatus();
  MoveReason reason = MoveReason::kLease;  // of a transfer

  bool Is(Transfer which) const { return kind == Kind::kTransfer && transfer == which; }
};

// Why a caller waits: for `tile`, its own or the one in the way, in a tier.
struct Stall {
  StallCause cause = StallCause::kCopy;
  Tier tier = Tier::kDevice;
  TileIndex tile = TimelineEvent::kNoTile;
  friend bool operator==(const Stall&, const Stall&) = default;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ACTION_H_
