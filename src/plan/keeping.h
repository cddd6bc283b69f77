// SPDX-License-Identifier: Apache-2.0
//
// The question behind a plan, for one tier: between two uses of a tile, is it kept or does it leave
// and come back? All policies answer it, all bounds bound its cost (MODEL.md). The tier's uses come
// round and round: the first of a tile follows its last.

#ifndef SPILLWAY_PLAN_KEEPING_H_
#define SPILLWAY_PLAN_KEEPING_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/plan/trace.h"

namespace spillway::plan {

inline constexpr uint64_t kNotReserved = ~uint64_t{0};

// Three positions an event: bytes come before it, it happens, bytes leave after it.
inline constexpr uint32_t kPositionsPerEvent = 3;
constexpr uint32_t BeforeEvent(uint32_t event) { return kPositionsPerEvent * event; }
constexpr uint32_t AtEvent(uint32_t event) { return kPositionsPerEvent * event + 1; }
constexpr uint32_t AfterEvent(uint32_t event) { return kPositionsPerEvent * event + 2; }

// A time in which a tile must be in the tier, or one in which its bytes there become void. A use
// with its gap, the time from it to the tile's next use, share an index.
struct Use {
  enum class Kind : uint8_t {
    kHold,  // in the tier from `begin` up to, not including, `end`
    kVoid,  // from `begin`; from `end` the tier below may send the new ones
  };
  uint32_t begin = 0, end = 0;  // positions
  uint32_t event = 0;           // at which it begins
  TileIndex tile = 0;
  Kind kind = Kind::kHold;
  bool needs = false;    // the tile's bytes must come from below if it was not kept
  bool dirties = false;  // afterwards the tier below does not have the bytes
  bool cleaned = false;  // in the gap the tier below gets the bytes, whatever is kept
  bool away = false;     // the tile rests elsewhere: its gap is not kept
  // Finish computes these, of the gap.
  bool dirty = false;         // keeping it, and the rest of its epoch, saves a transfer down
  bool forced_write = false;  // the bytes that the use wrote go down whatever is kept
  bool leaves = false;        // keeping it saves nothing
};

class Keeping {
 public:
  uint32_t num_positions = 0;
  std::vector<uint64_t> size_bytes;  // by tile, a frame's
  std::vector<Use> uses;             // by tile, in the order in which they come
  std::vector<uint32_t> first;       // by tile: its first use; one more for the end
  // By tile: where its frame lies that is its own all the time; kNotReserved: it has none. Such
  // tiles take no part in the question.
  std::vector<uint64_t> reserved_frame;
  // By position: of uses, without what is kept or has a reserved frame; from Finish.
  std::vector<uint64_t> use_bytes;
  // Once true, nobody wants the answer: whoever looks for it ends soon, with any. Null: never.
  const std::atomic<bool>* stop = nullptr;

  uint32_t num_tiles() const { return static_cast<uint32_t>(size_bytes.size()); }
  // The use that ends a use's gap.
  uint32_t Next(uint32_t use) const {
    const TileIndex tile = uses[use].tile;
    return use + 1 < first[tile + 1] ? use + 1 : first[tile];
  }
  uint64_t UseBytes(uint32_t use) const { return size_bytes[uses[use].tile]; }
  bool has_reserved_frame(TileIndex tile) const { return reserved_frame[tile] != kNotReserved; }
  uint64_t ReservedFrameBytes() const;  // of all tiles
  // Whether the gap saves a transfer from below.
  bool SavesRead(uint32_t use) const { return uses[Next(use)].needs; }

  // Whether the bytes that the tier below writes may come at once, long before they are needed: the
  // gap after the void is then kept.
  bool MayComeEarly(uint32_t use) const {
    return uses[use].kind == Use::Kind::kVoid && uses[use].end > uses[use].begin &&
           SavesRead(use) && !uses[use].away;
  }

  uint64_t PeakUseBytes() const;
  bool is_stopped() const { return stop != nullptr && *stop; }

  // To be called when `uses` and `first` are complete.
  void Finish();

 private:
  void MarkGaps();
  void SumUseBytes();
};

// By use: the gap after it is kept.
using Kept = std::vector<bool>;

// Gaps from a use that dirties up to where its bytes end; keeping all of them saves a transfer
// down. A gap that is not dirty is an epoch of its own.
struct Epoch {
  uint32_t first_gap = 0;
  uint32_t num_gaps = 0;
  bool dirty = false;
};
// Of one tile; a gap that leaves is in none.
void EpochsOf(const Keeping& keeping, TileIndex tile, std::vector<Epoch>* epochs);
std::vector<Epoch> AllEpochs(const Keeping& keeping);  // tile by tile

struct TierBytes {
  uint64_t up = 0;    // from the tier below
  uint64_t down = 0;  // to it
  uint64_t total() const { return up + down; }
};
// What a period moves between this tier and the one below.
TierBytes Cost(const Keeping& keeping, const Kept& kept);

// Keeps what lies in reserved frames, and nothing that rests elsewhere.
void KeepPlaced(const Keeping& keeping, Kept* kept);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_KEEPING_H_
