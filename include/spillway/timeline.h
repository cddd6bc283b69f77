// SPDX-License-Identifier: Apache-2.0
//
// What the engine did and when, for pictures: every transfer, every wait of a caller's with its
// cause, the callers' time between leases, the mover's work, commits, and how full each tier was.
// Recorded only where EngineOptions::timeline_events asks for it; taken with Engine::TakeTimeline.

#ifndef SPILLWAY_TIMELINE_H_
#define SPILLWAY_TIMELINE_H_

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/export.h"
#include "spillway/stats.h"
#include "spillway/types.h"

namespace spillway {

// Why bytes moved.
enum class MoveReason : uint8_t {
  kLease,        // a caller waited for them
  kAhead,        // a declared use was coming
  kMakeRoom,     // others needed the room
  kWriteBehind,  // so that the room is clean when it is wanted
  kCommit,
};

// What a caller waited for: `tile` is the one that it asked for, `other` the one in the way.
enum class StallCause : uint8_t {
  kNvme,       // its bytes were still on NVMe: being read
  kCopy,       // its bytes were being copied between pinned memory and the device
  kZeros,      // it was never written: its room was being filled with zeros
  kWriteBack,  // `other` was being written to NVMe first
  kCopyOut,    // `other` was being copied from the device to pinned memory first
  kNoRoom,     // there was no room: `other` was leased or just being brought in
  kLeased,     // another lease on it had to end
};

struct TimelineEvent {
  enum class Kind : uint8_t {
    kRead,       // NVMe→pinned; `reason`, `size_bytes`
    kWrite,      // pinned→NVMe; likewise
    kCopyIn,     // pinned→device; likewise
    kCopyOut,    // device→pinned; likewise
    kCompute,    // a caller between two leases; `tile` is the one leased last
    kStall,      // a caller blocked for a lease; `cause`, `tile`, `other`
    kMover,      // the transfer thread at work
    kFlush,      // a commit's first part: what is not on NVMe goes there
    kCommit,     // a whole commit
    kOccupancy,  // at `begin_ns`: `size_bytes` are held in `tier`
  };
  static constexpr uint32_t kNoTile = std::numeric_limits<uint32_t>::max();

  Kind kind = Kind::kRead;
  MoveReason reason = MoveReason::kLease;
  StallCause cause = StallCause::kNvme;
  Tier tier = Tier::kDevice;
  bool failed = false;      // a transfer that ended with an error: its bytes do not count
  uint16_t thread = 0;      // kCompute, kStall, kFlush, kCommit: which caller, from 0
  uint32_t tile = kNoTile;  // counted over all tensors; see Timeline::TileName
  uint32_t other = kNoTile;
  int64_t begin_ns = 0;  // of std::chrono::steady_clock
  int64_t end_ns = 0;
  uint64_t size_bytes = 0;
};

struct SPILLWAY_EXPORT Timeline {
  struct Tensor {
    std::string name;
    uint32_t first_tile = 0;
    uint32_t num_tiles = 0;
  };

  std::vector<TimelineEvent> events;  // in the order in which they ended
  uint64_t dropped = 0;               // older events that there was no room for
  int64_t begin_ns = 0;               // recorded from here
  int64_t end_ns = 0;                 // to here
  std::vector<Tensor> tensors;        // in the order of their tiles
  // kUnlimited: no limit was given.
  std::array<uint64_t, kNumTiers> budget_bytes{};
  // All bytes moved between begin_ns and end_ns; without `dropped`, the sums over `events`.
  Traffic nvme;
  Traffic pinned;

  // "layers.0.mlp.up" or, of several tiles, "layers.0.mlp.up [3]"; "" for kNoTile.
  std::string TileName(uint32_t tile) const;
};

// "lease", "ahead of use", "making room", "write-behind", "commit".
SPILLWAY_EXPORT std::string_view Name(MoveReason reason);
// "bytes on NVMe", "copy in flight", "first touch", "write-back", "copy out", "no room", "leased".
SPILLWAY_EXPORT std::string_view Name(StallCause cause);

}  // namespace spillway

#endif  // SPILLWAY_TIMELINE_H_
