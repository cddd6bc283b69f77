// SPDX-License-Identifier: Apache-2.0
//
// A record of what the engine did and when, for diagrams: every transfer, every wait of a caller
// with its cause, the callers' time between leases, the transfer thread's work, commits, and how
// full each tier was. Nothing is recorded if EngineOptions::timeline_events is 0.
// Engine::TakeTimeline returns the record.

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
  kLease,        // a caller waited for the bytes
  kAhead,        // for a declared or planned use to come
  kMakeRoom,     // so that the tile's frame could be used for other tiles
  kWriteBehind,  // early, so that no write is needed when the frame is reused
  kCommit,       // a commit wrote them
};

// What a caller waited for. In the event, `tile` is the tile that the caller requested, and `other`
// is the tile in the way.
enum class StallCause : uint8_t {
  kNvme,       // its bytes were being read from NVMe
  kCopy,       // its bytes were being copied between pinned memory and the device
  kZeros,      // it was never written: its frame was being filled with zeros
  kWriteBack,  // `other` was being written to NVMe first
  kCopyOut,    // `other` was being copied from the device to pinned memory first
  kNoRoom,     // there was no room: `other` was leased or being brought in
  kLeased,     // another lease on `tile` had to end
};

struct TimelineEvent {
  enum class Kind : uint8_t {
    kRead,       // NVMe→pinned; has `tile`, `reason`, `size_bytes`
    kWrite,      // pinned→NVMe; has the same fields
    kCopyIn,     // pinned→device; has the same fields
    kCopyOut,    // device→pinned; has the same fields
    kCompute,    // a caller's time between two leases; `tile` is the one leased last
    kStall,      // a caller's wait for a lease; has `cause`, `tile`, `other`
    kMover,      // the transfer thread's work
    kFlush,      // a commit's first part, which writes what is not on NVMe yet
    kCommit,     // a whole commit
    kOccupancy,  // from `begin_ns` on, `size_bytes` are held in `tier`; see Timeline::events
  };
  static constexpr uint32_t kNoTile = std::numeric_limits<uint32_t>::max();

  Kind kind = Kind::kRead;
  MoveReason reason = MoveReason::kLease;
  StallCause cause = StallCause::kNvme;
  Tier tier = Tier::kDevice;
  bool failed = false;  // the transfer ended with an error; its bytes do not count
  // For kCompute, kStall, kFlush, kCommit: the caller's number, from 0. A later thread may have the
  // number of one that has ended.
  uint16_t thread = 0;
  uint32_t tile = kNoTile;  // index over the tiles of all tensors: see Timeline::TileName
  uint32_t other = kNoTile;
  int64_t begin_ns = 0;  // time of std::chrono::steady_clock
  int64_t end_ns = 0;
  uint64_t size_bytes = 0;
};

struct SPILLWAY_EXPORT Timeline {
  struct Tensor {
    std::string name;
    uint32_t first_tile = 0;
    uint32_t num_tiles = 0;
  };

  // In the order in which they ended. Before them is one kOccupancy for each tier that held bytes
  // at that time, in addition to EngineOptions::timeline_events. Its time is `begin_ns`. If events
  // were dropped, it is the end of the oldest event that was kept: what happened before that is not
  // known.
  std::vector<TimelineEvent> events;
  uint64_t dropped = 0;         // number of older events that newer ones replaced
  int64_t begin_ns = 0;         // when the record begins
  int64_t end_ns = 0;           // when the record ends
  std::vector<Tensor> tensors;  // in the order of their tiles
  // By Tier. kUnlimited: no limit was given.
  std::array<uint64_t, kNumTiers> budget_bytes{};
  // All bytes moved between begin_ns and end_ns. If `dropped` is 0, the sums over `events`.
  Traffic nvme;
  Traffic pinned;

  // The tensor's name, "layers.0.mlp.up", with the tile's number if the tensor has several tiles,
  // "layers.0.mlp.up [3]"; "" for kNoTile.
  std::string TileName(uint32_t tile) const;
};

// "lease", "ahead of use", "making room", "write-behind", "commit".
SPILLWAY_EXPORT std::string_view Name(MoveReason reason);
// "bytes on NVMe", "copy in flight", "first touch", "write-back", "copy out", "no room", "leased".
SPILLWAY_EXPORT std::string_view Name(StallCause cause);

}  // namespace spillway

#endif  // SPILLWAY_TIMELINE_H_
