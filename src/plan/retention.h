// SPDX-License-Identifier: Apache-2.0
//
// The question behind a plan, for one tier: between two uses of a tile, is the tile retained, or
// does it leave and come back? Plans answer this question, and bounds bound its cost
// (MODEL.md). The tier's uses repeat: a tile's first use follows its last.

#ifndef SPILLWAY_PLAN_RETENTION_H_
#define SPILLWAY_PLAN_RETENTION_H_

#include <cstdint>
#include <vector>

#include "src/plan/trace.h"

namespace spillway::plan {

inline constexpr uint64_t kNotReserved = ~uint64_t{0};

// Each event has three positions: bytes come before it, it happens, and bytes leave after it.
inline constexpr uint32_t kPositionsPerEvent = 3;
constexpr uint32_t BeforeEvent(uint32_t event) { return kPositionsPerEvent * event; }
constexpr uint32_t AtEvent(uint32_t event) { return kPositionsPerEvent * event + 1; }
constexpr uint32_t AfterEvent(uint32_t event) { return kPositionsPerEvent * event + 2; }

// A time in which a tile must be in the tier, or one in which its bytes there become void. The gap
// of a use is the time from it to the tile's next use. A use and its gap share an index.
struct Use {
  enum class Kind : uint8_t {
    kHold,  // the tile is in the tier from `begin` up to, not including, `end`
    kVoid,  // the bytes are void from `begin`; from `end` the tier below may send new ones
  };
  uint32_t begin = 0, end = 0;  // positions
  TileIndex tile = 0;
  Kind kind = Kind::kHold;
  bool needs = false;    // the tile's bytes must come from below if the tile was not retained
  bool dirties = false;  // afterwards the tier below does not have the bytes
  bool cleaned = false;  // in the gap the tier below gets the bytes, whatever is retained
  bool away = false;     // the tile rests in another tier, so the gap is not retained
  // Finish computes these. They describe the gap.
  bool dirty = false;         // retaining the gap and the rest of its epoch saves a transfer down
  bool forced_write = false;  // the bytes that the use wrote go down whatever is retained
  bool leaves = false;        // retaining the gap saves nothing

  // The event at which the use begins.
  uint32_t event() const { return begin / kPositionsPerEvent; }
};

class Retention {
 public:
  uint32_t num_positions = 0;
  std::vector<uint64_t> size_bytes;  // by tile: the size of its frame
  std::vector<Use> uses;             // grouped by tile, in order of time
  std::vector<uint32_t> first;       // by tile: its first use; one more entry for the end
  // By tile: the offset of its reserved frame, or kNotReserved. Tiles with a reserved frame take no
  // part in the question of what is retained.
  std::vector<uint64_t> reserved_frame;
  // By position: the bytes of tiles in use. Tiles that are only retained, or that have a reserved
  // frame, do not count. Finish computes it, and the most that there are at once.
  std::vector<uint64_t> use_bytes;
  uint64_t peak_use_bytes = 0;

  uint32_t num_tiles() const { return static_cast<uint32_t>(size_bytes.size()); }
  // The use that ends a use's gap.
  uint32_t Next(uint32_t use) const {
    const TileIndex tile = uses[use].tile;
    return use + 1 < first[tile + 1] ? use + 1 : first[tile];
  }
  // The position at which a use's gap ends.
  uint32_t GapEnd(uint32_t use) const { return uses[Next(use)].begin; }
  uint64_t UseBytes(uint32_t use) const { return size_bytes[uses[use].tile]; }
  bool has_reserved_frame(TileIndex tile) const { return reserved_frame[tile] != kNotReserved; }
  uint64_t ReservedFrameBytes() const;  // the sum over all tiles
  // Whether retaining the gap saves a transfer from below.
  bool SavesRead(uint32_t use) const { return uses[Next(use)].needs; }

  // Whether the bytes that the tier below writes may come at once, long before they are needed. If
  // they do, the gap after the void is retained.
  bool MayComeEarly(uint32_t use) const {
    return uses[use].kind == Use::Kind::kVoid && uses[use].end > uses[use].begin &&
           SavesRead(use) && !uses[use].away;
  }

  // Computes what follows from the uses. REQUIRES: `uses` and `first` are complete.
  void Finish();

 private:
  void MarkGaps();
  void SumUseBytes();
};

// By use: whether the gap after it is retained.
using Retained = std::vector<bool>;

// The gaps from a use that writes up to where its bytes are overwritten or become void. Retaining
// all of them saves a transfer down. A gap that is not dirty is an epoch of its own.
struct Epoch {
  uint32_t first_gap = 0;
  uint32_t num_gaps = 0;
  bool dirty = false;
};
// Returns the epochs, tile by tile. A gap that leaves is in no epoch.
std::vector<Epoch> AllEpochs(const Retention& retention);
// Visits the gaps of an epoch in order.
template <typename Visit>
void ForGaps(const Retention& retention, const Epoch& epoch, const Visit& visit) {
  uint32_t gap = epoch.first_gap;
  for (uint32_t i = 0; i < epoch.num_gaps; ++i, gap = retention.Next(gap)) visit(gap);
}

// Returns, by use, whether the bytes that it wrote go to the tier below.
std::vector<bool> GoesDown(const Retention& retention, const Retained& retained);
// The bytes that a period moves between this tier and the one below.
uint64_t Cost(const Retention& retention, const Retained& retained);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_KEEPING_H_
