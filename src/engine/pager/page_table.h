// SPDX-License-Identifier: Apache-2.0
//
// The state of each tile: what it is, its copies in memory, its copy on NVMe, its frames, its
// leases and the transfer in flight. Every copy that is ready holds the newest bytes. A tile that
// was never written reads as zeros, and none of its copies has to be kept.
//
// Every change that affects the occupancy counters or the sets of tiles is made by a method of
// PageTable, so that they agree with the state. PageTable decides nothing: the parts of the pager
// (pager.h) do.

#ifndef SPILLWAY_ENGINE_PAGER_PAGE_TABLE_H_
#define SPILLWAY_ENGINE_PAGER_PAGE_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "spillway/stats.h"
#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/arena_map.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/leases.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/pager/write_failures.h"
#include "src/plan/tile_bits.h"

namespace spillway::engine {

// The most that one run of the pump looks at for the plan that is followed. The pump runs under a
// lock until nothing moves any more. Without these limits, a run could look at as many tiles as
// there are, and a caller that leases meanwhile would wait for all of it. The next run goes on
// where one stopped; if nothing is in flight, Action::Kind::kRunAgain asks for it.
struct PumpLimits {
  int passed = PlanFollower::kMostPassed;  // events of the plan that callers have asked for
  int idle = 64;      // operations of each queue that move nothing or were skipped
  int entering = 64;  // events whose tiles the plan has in memory when it begins
  int settled = 128;  // tiles whose copies may not lie where the plan has them
};

struct PagerOptions {
  uint64_t device_bytes = 0;  // budgets of the arenas
  uint64_t pinned_bytes = 0;
  bool has_store = false;    // if false, pinned memory is the lowest tier
  int max_prefetches = 8;    // prefetch jobs at a time
  int max_flushes = 16;      // flush jobs at a time; a group of small tiles may be larger
  uint64_t small_bytes = 0;  // tiles of at most this size are written together
  Placement placement = {};
  PumpLimits pump = {};
  // The search for a claim's window stops when it has found one and weighed this many segments, so
  // that the cost of a claim does not grow with the arena.
  size_t most_weighed = 128;
  std::function<std::string(TileIndex)> describe;  // names a tile in messages: "tensor 'a' tile 3"
};

// An operation of the plan that was followed when the operation began.
struct PlannedOp {
  uint64_t run = 0;                       // number of the plan: see PlanRun
  std::optional<PlanFollower::Count> op;  // none: it brings in a copy that the plan begins with
};

// A tile's copy in the device or the pinned tier, and its frame.
struct Copy {
  enum class State : uint8_t { kNone, kClaiming, kHeld, kReady } state = State::kNone;
  bool leaving = false;         // it has an eviction job
  bool prefetched = false;      // brought in ahead of use and not used yet
  uint64_t offset = 0;          // of its frame
  const Job* holder = nullptr;  // kHeld: the waiting job that holds the frame; null: idle

  bool is_ready() const { return state == State::kReady; }
  bool has_frame() const { return state == State::kReady || state == State::kHeld; }
  void SetReady() {
    state = State::kReady;
    holder = nullptr;
  }
};

constexpr Tier Other(Tier tier) { return tier == Tier::kDevice ? Tier::kPinned : Tier::kDevice; }
constexpr size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

struct alignas(64) Page {
  // The fields that a search for room and a lease of a resident tile read come first: they share a
  // cache line.
  std::array<Copy, 2> copies;  // kDevice, kPinned
  uint64_t last_use = 0;
  std::optional<Transfer> transfer;  // in flight
  std::optional<Tier> rest;          // the tier where the tile rests: see Placement; none if gone
  bool stored = false;               // NVMe has the newest bytes
  bool zero = true;                  // never written
  bool discard = false;  // the bytes are void once the transfer in flight and the leases end
  // A writer's lease ended before the end of the copy to the device was reported.
  bool written_before_copy = false;
  bool queued = false;               // in the queue for write-behind
  bool is_gone = false;              // its tensor was unregistered: it is not leased again
  bool leased_before_copy = false;   // a lease was granted before the end of the copy in flight
  const Tile* tile = nullptr;        // its constant properties
  Job* transfer_job = nullptr;       // the job that started the transfer in flight
  std::optional<PlannedOp> planned;  // the plan's operation that the transfer in flight carries out

  Copy& copy(Tier tier) { return copies[At(tier)]; }
  const Copy& copy(Tier tier) const { return copies[At(tier)]; }
  bool is_ready(Tier tier) const { return copy(tier).is_ready(); }
  bool is_moving() const { return transfer.has_value(); }
  bool is_leaving() const { return copies[0].leaving || copies[1].leaving; }
  // Whether its frame in the tier is reserved: the tile keeps it once it has one.
  bool is_reserved(Tier tier) const { return rest == tier; }
  // Whether its tensor was unregistered, its bytes are discarded and no transfer is in flight.
  bool is_forgotten() const { return is_gone && !discard && !is_moving(); }
  // Whether it was written and not discarded since.
  bool has_bytes() const { return (!zero || written_before_copy) && !discard; }
  // Whether the tier's copy has the newest bytes. Until the end of a copy is reported for which a
  // writer did not wait, the copy on the device counts, and the other one is about to be void.
  bool has_newest(Tier tier) const {
    return written_before_copy ? tier == Tier::kDevice : is_ready(tier);
  }
  uint64_t size_bytes() const { return tile->size_bytes; }
  uint64_t frame_bytes() const { return tile->frame_bytes(); }
  // Whether it has a reserved frame in the other memory tier that waits for the bytes.
  bool GoesToReservedFrame(Tier tier) const;
  // Whether the copy may be dropped without moving its bytes: it has none, or they are elsewhere
  // too. If a reserved frame waits for the bytes, they go there even if NVMe has them.
  bool MayForget(Tier tier) const;
};

// A part of an arena that is claimed for a tile, and is emptied for it.
struct ClaimWindow {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  TileIndex claimant = 0;
};

// Externally synchronised.
class PageTable {
 public:
  explicit PageTable(PagerOptions options);

  // Adds a tile. `stored`: its bytes are on NVMe already, at `place`.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored, StorePlace place);

  const TileTable& tiles() const { return tiles_; }
  const PagerOptions& options() const { return options_; }
  TileIndex num_tiles() const { return static_cast<TileIndex>(pages_.size()); }
  Page& operator[](TileIndex tile) { return pages_[tile]; }
  const Page& operator[](TileIndex tile) const { return pages_[tile]; }
  // Prefetches into the CPU cache what a search for room reads of the tile.
  void Prefetch(TileIndex tile) const {
    __builtin_prefetch(&pages_[tile]);
    leases_.Prefetch(tile);
  }
  Leases& leases() { return leases_; }
  const Leases& leases() const { return leases_; }
  ArenaMap& arena(Tier tier) { return arenas_[At(tier)]; }
  const ArenaMap& arena(Tier tier) const { return arenas_[At(tier)]; }
  WriteFailures& failures() { return failures_; }
  EngineStats& stats() { return stats_; }
  const EngineStats& stats() const { return stats_; }
  // The actions that the mover has not taken yet.
  std::vector<Action>& actions() { return actions_; }

  // --- Queries ---
  // Whether pinned memory has room for all tiles at once, those that are gone included. Adding
  // tiles can end that.
  bool AllFit() const { return frames_bytes_ <= options_.pinned_bytes; }
  // Whether the tile has a place in pinned memory that is no other tile's. These places are
  // assigned from the top down, and reserved frames lie below them.
  bool HasOwnPlace(const Tile& tile) const { return AllFit() && tile.rest != Tier::kPinned; }
  // Tiles that are part of a commit and have bytes that are not on NVMe.
  const plan::TileBits& to_commit() const { return to_commit_; }
  // The current state of the tiles that planning needs.
  TilesNow Now() const {
    return {.with_bytes = with_bytes_, .reserved_changes = reserved_changes_, .all_fit = AllFit()};
  }
  // Whether the tile's other leases, discard and evictions permit the job's lease.
  bool CanLease(const Job& job) const;

  // --- Frames ---
  // Records the tile's frame at `offset`. REQUIRES: the frame is allocated in the arena.
  void HoldFrame(TileIndex tile, Tier tier, uint64_t offset, const Job* holder);
  // Drops the copy's bytes, and frees its frame unless the frame is reserved. The part of the frame
  // in a claim's window becomes claimed. REQUIRES: no lease.
  void DropFrame(TileIndex tile, Tier tier, const ClaimWindow& claim = {});
  // Ends the eviction of a copy that could not leave.
  void Stay(TileIndex tile, Tier tier) {
    pages_[tile].copy(tier).leaving = false;
    CountEnding();
  }

  // --- Bytes ---
  // Voids all copies except the one in `keep`, whose writer makes them stale.
  void VoidOtherCopies(TileIndex tile, Tier keep);
  // Marks the bytes as void once the transfer in flight and the leases have ended. DropIfDiscarded
  // must be called then: it drops the bytes, and returns whether it did.
  void Discard(TileIndex tile);
  bool DropIfDiscarded(TileIndex tile);
  // See Page::written_before_copy.
  void SetWrittenBeforeCopy(TileIndex tile, bool written);
  void SetStored(TileIndex tile, bool stored);
  // Records that a lease was taken, for recency and for the counters.
  void Used(TileIndex tile, Tier tier);
  uint64_t num_uses() const { return clock_; }
  // Counts transfers, leases and discards that ended, copies that were dropped and evictions that
  // were given up. An operation that found no room, or that waits for its tile, need not be tried
  // again before this number has changed.
  uint64_t num_endings() const { return endings_ + leases_.num_ended(); }
  void CountEnding() { ++endings_; }
  // Drops every copy in memory; reserved frames stay. A tile's bytes are then on NVMe if
  // `is_stored` returns true; otherwise, and for a transient tile, the tile counts as never
  // written.
  void Reset(const std::function<bool(TileIndex)>& is_stored);

 private:
  void ForgetCopies(TileIndex tile);
  void SetZero(TileIndex tile, bool zero);
  void NoteBytes(TileIndex tile);
  void Count(TileIndex tile, Tier tier, bool held);

  const PagerOptions options_;
  TileTable tiles_;
  base::StableArray<Page> pages_;
  Leases leases_;
  WriteFailures failures_;
  std::array<ArenaMap, 2> arenas_;
  uint64_t frames_bytes_ = 0;  // the frames of all tiles together, those that are gone included
  uint64_t own_begin_;         // the lowest own place
  plan::TileBits with_bytes_;
  plan::TileBits to_commit_;
  uint64_t reserved_changes_ = 0;
  uint64_t clock_ = 0;    // counts leases
  uint64_t endings_ = 0;  // num_endings() without those of leases
  std::vector<Action> actions_;
  EngineStats stats_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PAGE_TABLE_H_
