// SPDX-License-Identifier: Apache-2.0
//
// The uses that the caller declared, in order: what will be asked for next, and when a tile comes
// up again. Pure; it moves nothing.

#ifndef SPILLWAY_ENGINE_PAGER_USE_QUEUE_H_
#define SPILLWAY_ENGINE_PAGER_USE_QUEUE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_map>

#include "spillway/types.h"
#include "src/engine/pager/arena_map.h"

namespace spillway::engine {

// Positions count declared uses from the engine's start, from 1; they only grow.
class UseQueue {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  // A use that comes this far ahead of its turn was not the one declared.
  static constexpr uint64_t kMaxSkip = 256;

  struct Entry {
    TileIndex tile = 0;
    Tier tier = Tier::kDevice;
    Access access = Access::kRead;
    uint64_t next_same = kNever;  // position of the next use of this tile in this tier
  };

  void Declare(TileIndex tile, Tier tier, Access access);
  void Clear();

  // A lease was asked for: uses up to its declared position are past.
  void OnUse(TileIndex tile, Tier tier);

  // Position of the next declared use of the tile in the tier; kNever if there is none.
  uint64_t NextUse(TileIndex tile, Tier tier) const;
  // The use at a position that NextUse gave.
  const Entry& At(uint64_t position) const { return entries_[position - first_]; }
  // The position that the next declared use to come has.
  uint64_t now() const { return first_; }

  // The next use to prefetch for, or null; Advance goes past it.
  const Entry* PrefetchCandidate() const;
  uint64_t prefetch_position() const { return cursor_; }
  void AdvancePrefetch() { ++cursor_; }

 private:
  struct Chain {
    uint64_t first = kNever;
    uint64_t last = kNever;
  };
  static uint64_t Key(TileIndex tile, Tier tier) {
    return (uint64_t{tile} << 1) | (tier == Tier::kPinned ? 1 : 0);
  }

  std::deque<Entry> entries_;  // positions first_ .. first_ + size
  uint64_t first_ = 1;
  uint64_t cursor_ = 1;  // at least first_
  std::unordered_map<uint64_t, Chain> chains_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_USE_QUEUE_H_
