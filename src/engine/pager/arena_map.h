// SPDX-License-Identifier: Apache-2.0
//
// Room in one tier's arena: which byte ranges are free, which are a tile's frame, and which are
// claimed for a tile. Pure bookkeeping on offsets; it does not decide which tile is evicted.
//
// The arena is a sequence of segments without gaps, ordered by offset. So a contiguous window is a
// run of neighbouring segments, and its cost is a sum over them.

#ifndef SPILLWAY_ENGINE_PAGER_ARENA_MAP_H_
#define SPILLWAY_ENGINE_PAGER_ARENA_MAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace spillway::engine {

using TileIndex = uint32_t;  // a tile of one engine, dense from zero

// Frames start and end at multiples of this, so that a frame can be the buffer of an O_DIRECT
// transfer.
inline constexpr uint64_t kFrameAlignment = 4096;

class ArenaMap {
 public:
  enum class Kind : uint8_t { kFree, kFrame, kClaimed };
  struct Segment {
    uint64_t size_bytes = 0;
    Kind kind = Kind::kFree;
    TileIndex tile = 0;  // the frame's tile, or the tile that the claim is for
  };
  using Segments = std::map<uint64_t, Segment>;  // by offset

  // The arena's size is rounded down to the frame alignment.
  explicit ArenaMap(uint64_t size_bytes);

  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  const Segments& segments() const { return segments_; }
  // Returns the segment that holds `offset`, or segments().end() if `offset` is past the arena.
  Segments::const_iterator At(uint64_t offset) const;
  // Returns the tiles of which a frame lies in [begin, end), in part or whole, in order.
  std::vector<TileIndex> TilesIn(uint64_t begin, uint64_t end) const;

  // Allocates the tile's frame in the smallest free run that holds `size_bytes` (a multiple of the
  // alignment) at or after `from`. Returns the frame's offset, or none if there is no such run.
  std::optional<uint64_t> Allocate(uint64_t size_bytes, TileIndex tile, uint64_t from = 0);
  // Allocates the tile's frame at `offset`. Returns false if part of that range is not free.
  bool AllocateAt(uint64_t offset, uint64_t size_bytes, TileIndex tile);

  // Whether Allocate would succeed.
  bool HasFree(uint64_t size_bytes, uint64_t from = 0) const {
    return FindFree(size_bytes, from).has_value();
  }

  // Frees a frame.
  void Free(uint64_t offset) { FreeInto(offset, 0, 0, 0); }

  // Frees a frame. The part of it in [window, window + window_bytes) becomes claimed for
  // `claimant`.
  void FreeInto(uint64_t offset, uint64_t window, uint64_t window_bytes, TileIndex claimant);

  // Claims the free parts of a window for `claimant`.
  void ClaimFree(uint64_t window, uint64_t window_bytes, TileIndex claimant);

  // Turns a window into one frame of the claimant. REQUIRES: all of it is claimed for the claimant.
  void ClaimedToFrame(uint64_t window, uint64_t window_bytes, TileIndex claimant);

  // Frees the parts of a window that are claimed for `claimant`.
  void GiveUpClaim(uint64_t window, uint64_t window_bytes, TileIndex claimant);

 private:
  using Iterator = Segments::iterator;
  std::optional<uint64_t> FindFree(uint64_t size_bytes, uint64_t from) const;
  // Splits the segment that holds `offset` so that one begins there. Does nothing at a boundary or
  // at the end.
  void SplitAt(uint64_t offset);
  void SetKind(Iterator it, Kind kind, TileIndex tile);
  Iterator MergeFree(Iterator it);  // merges a free segment with its free neighbours

  uint64_t size_bytes_;
  uint64_t used_bytes_ = 0;  // frames and claims
  Segments segments_;
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // (size, offset)
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_ARENA_MAP_H_
