// SPDX-License-Identifier: Apache-2.0
//
// The uses that callers declared, in order: which tile is leased next, and when a given tile is
// leased again. Pure bookkeeping; it moves nothing.

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

// A position is the number of a declared use, counted from 1 at the engine's start. Positions only
// grow.
class UseQueue {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  // A use that comes more than this many positions early is not taken for the declared one. After
  // as many such uses it is, and the declared uses in between are dropped.
  static constexpr uint64_t kMaxSkip = 256;

  struct Entry {
    TileIndex tile = 0;
    Tier tier = Tier::kDevice;
    Access access = Access::kRead;
    uint64_t next_same = kNever;  // position of the next use of this tile in this tier
  };

  void Declare(TileIndex tile, Tier tier, Access access);
  void Clear();

  // Records that a lease is requested: removes the declared uses up to and including its own, if it
  // has one.
  void OnUse(TileIndex tile, Tier tier);

  // Returns the position of the next declared use of the tile in the tier; kNever if there is none.
  uint64_t NextUse(TileIndex tile, Tier tier) const;
  // Returns the use at a position that NextUse returned.
  const Entry& At(uint64_t position) const { return entries_[position - first_]; }
  // The position of the first declared use that is still to come.
  uint64_t now() const { return first_; }

  // Returns the next use to prefetch for, or null. AdvancePrefetch moves past it.
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

  std::deque<Entry> entries_;  // positions [first_, first_ + size)
  uint64_t first_ = 1;
  uint64_t num_early_ = 0;  // uses since the last that counted which came too early
  uint64_t cursor_ = 1;     // position of the next use to prefetch for; at least first_
  std::unordered_map<uint64_t, Chain> chains_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_USE_QUEUE_H_
