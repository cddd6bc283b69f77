// SPDX-License-Identifier: Apache-2.0
//
// What each tile is and where its bytes are: its copies in memory, its copy on NVMe, its frames,
// its leases and the transfer in flight. Every copy that is ready holds the newest bytes. A tile
// that was never written reads as zeros and rests nowhere.
//
// All changes of this state are made here, so that frames, counters and hashes agree with it.
// Nothing is decided here: the parts of the pager (pager.h) do that.

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
#include "src/engine/pager/resting_places.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/pager/write_failures.h"
#include "src/plan/tile_bits.h"

namespace spillway::engine {

struct PagerOptions {
  uint64_t device_bytes = 0;  // budgets of the arenas
  uint64_t pinned_bytes = 0;
  bool has_store = false;    // without one, pinned memory is the last tier
  int max_prefetches = 8;    // tiles on their way ahead of use
  int max_flushes = 16;      // tiles on their way to a commit
  uint64_t small_bytes = 0;  // tiles of at most this size are written together
  Placement placement = {};
  // Frames and free runs weighed for one claim, as long as one of them will do: what a claim costs
  // must not grow with the arena.
  size_t most_weighed = 128;
  std::function<std::string(TileIndex)> describe;  // for messages: "tensor 'a' tile 3"
};

// An operation of the plan that was followed when it began.
struct PlannedOp {
  uint64_t run = 0;                       // of the plan: see PlanRun
  std::optional<PlanFollower::Count> op;  // none: it brings what the plan begins with
};

// A tile's room in the device or the pinned tier.
struct Copy {
  enum class State : uint8_t { kNone, kClaiming, kHeld, kReady } state = State::kNone;
  bool leaving = false;         // an eviction job is on it
  bool prefetched = false;      // it came ahead of use and was not used yet
  uint64_t offset = 0;          // of its frame
  const Job* holder = nullptr;  // kHeld: the job that waits with the frame; null: it is idle

  bool is_ready() const { return state == State::kReady; }
  bool has_frame() const { return state == State::kReady || state == State::kHeld; }
  void SetReady() {
    state = State::kReady;
    holder = nullptr;
  }
};

struct alignas(64) Page {
  // What a search for room and a lease of a tile in place read lies in one line of the cache.
  std::array<Copy, 2> copies;  // kDevice, kPinned
  uint64_t last_use = 0;
  std::optional<Transfer> transfer;  // in flight
  std::optional<Tier> rest;          // the tile's: see Placement
  bool stored = false;               // NVMe has the newest bytes
  bool zero = true;                  // never written
  bool discard = false;              // once the transfer in flight and the leases end
  bool written_before_copy =
      false;             // a writer's lease ended before the end of the copy was heard of
  bool queued = false;   // for write-behind
  bool is_gone = false;  // its tensor was unregistered: nobody leases it again
  bool leased_before_copy = false;   // a stream waits for the copy in flight, or did
  const Tile* tile = nullptr;        // what it is
  Job* transfer_job = nullptr;       // the job that started the transfer in flight
  std::optional<PlannedOp> planned;  // what the transfer in flight is of a plan

  Copy& copy(Tier tier) { return copies[tier == Tier::kDevice ? 0 : 1]; }
  const Copy& copy(Tier tier) const { return copies[tier == Tier::kDevice ? 0 : 1]; }
  bool is_ready(Tier tier) const { return copy(tier).is_ready(); }
  bool is_moving() const { return transfer.has_value(); }
  bool is_leaving() const { return copies[0].leaving || copies[1].leaving; }
  // Whether its frame in the tier, once it has one, is its own for good.
  bool is_reserved(Tier tier) const { return rest == tier; }
  // Its tensor was unregistered, and nothing is under way with it any more.
  bool is_forgotten() const { return is_gone && !discard && !is_moving(); }
  // Whether it was written and not discarded since.
  bool has_bytes() const { return !zero && !discard; }
  uint64_t size_bytes() const { return tile->size_bytes; }
  uint64_t frame_bytes() const { return tile->frame_bytes(); }
};

constexpr Tier Other(Tier tier) { return tier == Tier::kDevice ? Tier::kPinned : Tier::kDevice; }
constexpr size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }

// Externally synchronised.
class PageTable {
 public:
  explicit PageTable(PagerOptions options);

  // `stored`: its bytes are on NVMe already, at `place`.
  TileIndex AddTile(uint64_t size_bytes, Role role, bool transient, bool stored, StorePlace place);

  const TileTable& tiles() const { return tiles_; }
  const PagerOptions& options() const { return options_; }
  TileIndex num_tiles() const { return static_cast<TileIndex>(pages_.size()); }
  Page& operator[](TileIndex tile) { return pages_[tile]; }
  const Page& operator[](TileIndex tile) const { return pages_[tile]; }
  // Asks memory for what is known of a tile that is looked at soon.
  void Prefetch(TileIndex tile) const {
    __builtin_prefetch(&pages_[tile]);
    __builtin_prefetch(&leases_.table().count(tile, Tier::kDevice));
  }
  Leases& leases() { return leases_; }
  const Leases& leases() const { return leases_; }
  ArenaMap& arena(Tier tier) { return arenas_[At(tier)]; }
  const ArenaMap& arena(Tier tier) const { return arenas_[At(tier)]; }
  const RestingPlaces& resting() const { return resting_; }
  WriteFailures& failures() { return failures_; }
  EngineStats& stats() { return stats_; }
  const EngineStats& stats() const { return stats_; }
  // What the mover is to do.
  std::vector<Action>& actions() { return actions_; }

  // --- What is true ---
  // A frame in pinned memory from before such tiles were added that will stay there: a lease would
  // hold it in their way, so nobody has one without asking.
  bool IsInReservedRange(TileIndex tile) const;
  // Whether the tile has a reserved frame in the other tier in memory, which awaits the bytes.
  bool GoesToReservedFrame(TileIndex tile, Tier tier) const;
  // Whether the copy may be forgotten as it is: it has no bytes, or they are elsewhere. What rests
  // in memory goes to its reserved frame, even if NVMe has it, too.
  bool MayForget(TileIndex tile, Tier tier) const;
  // Tiles that a commit holds, and that have bytes which NVMe has not.
  const plan::TileBits& to_commit() const { return to_commit_; }
  // What a plan must know of the tiles.
  TilesNow Now() const {
    return {.with_bytes = with_bytes_,
            .placed = resting_.placed(),
            .num_reserved_frames = num_reserved_frames_,
            .all_fit = resting_.AllFit()};
  }
  // Whether the job's lease may be granted, as far as other leases and what leaves are concerned.
  bool CanLease(const Job& job);

  // --- Frames ---
  // The frame at `offset`, which is the tile's in the arena by now.
  void HoldFrame(TileIndex tile, Tier tier, uint64_t offset, const Job* holder);
  // The bytes go. So does the frame, unless it is reserved. REQUIRES: no lease.
  // With a claim, what lies in its window stays claimed.
  struct Window {
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
    TileIndex claimant = 0;
  };
  void DropFrame(TileIndex tile, Tier tier, const std::optional<Window>& claim = std::nullopt);
  // A copy that was to leave does not.
  void Stay(TileIndex tile, Tier tier) {
    pages_[tile].copy(tier).leaving = false;
    CountEnding();
  }

  // --- Bytes ---
  // A writer in the tier has the only bytes that count from now on.
  void VoidOtherCopies(TileIndex tile, Tier keep);
  // The bytes are void once the transfer in flight and the leases have ended: DropIfDiscarded, to
  // be called then, returns whether that is now.
  void Discard(TileIndex tile);
  bool DropIfDiscarded(TileIndex tile);
  void SetStored(TileIndex tile, bool stored);
  // A lease was taken: for recency, and for the counters.
  void Used(TileIndex tile, Tier tier);
  uint64_t num_uses() const { return clock_; }
  // Transfers and leases that ended, frames that were given back and copies that stay after all:
  // what found no room, or waits for its tile, need not look again before this has changed.
  uint64_t num_endings() const { return endings_ + leases_.num_ended(); }
  void CountEnding() { ++endings_; }
  // Everything in memory is forgotten. A tile's bytes are on NVMe if `is_stored` says so and were
  // never written if not; a transient tile was never written either.
  void Reset(const std::function<bool(TileIndex)>& is_stored);

 private:
  void ForgetCopies(TileIndex tile);
  void SetZero(TileIndex tile, bool zero);
  void NoteBytes(TileIndex tile);
  void Count(TileIndex tile, Tier tier, bool held);
  void ShutReservedRange(uint64_t from);

  const PagerOptions options_;
  TileTable tiles_;
  base::StableArray<Page> pages_;
  Leases leases_;
  WriteFailures failures_{&leases_};
  std::array<ArenaMap, 2> arenas_;
  RestingPlaces resting_;
  plan::TileBits with_bytes_;
  plan::TileBits to_commit_;
  uint64_t num_reserved_frames_ = 0;  // tiles that have a frame where they rest
  uint64_t clock_ = 0;                // counts leases
  uint64_t endings_ = 0;              // but for those of leases
  std::vector<Action> actions_;
  EngineStats stats_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_PAGE_TABLE_H_
