// SPDX-License-Identifier: Apache-2.0
//
// The trace of a step, which the planner reads: which tiles are leased, in which order, and with
// how much computing in between. A step that repeats has the same trace except for the times.
// Nothing here reads a clock: times are passed in.

#ifndef SPILLWAY_PLAN_TRACE_H_
#define SPILLWAY_PLAN_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "spillway/types.h"
#include "src/base/stable_array.h"
#include "src/plan/tile_bits.h"

namespace spillway::plan {

// A frame that belongs to one tile all the time.
struct ReservedFrame {
  Tier tier = Tier::kPinned;  // or kDevice
  uint64_t offset = 0;
};

struct TraceTile {
  uint64_t size_bytes = 0;
  Role role = Role::kParameter;
  bool transient = false;
  // Whether the tile has bytes when the step starts (on NVMe, if nothing moved yet). If not, it
  // reads as zeros.
  bool stored = false;
  std::optional<Tier> rest;  // see Placement
  // The frame in which it rests, if it rests on the device or in pinned memory.
  std::optional<ReservedFrame> reserved_frame;

  bool has_reserved_frame(Tier tier) const {
    return reserved_frame && reserved_frame->tier == tier;
  }
};

struct TraceEvent {
  enum class Kind : uint8_t {
    kAcquire,
    kRelease,
    kDiscard,  // a transient tile's bytes become void; it reads as zeros
  };
  double seconds_before = 0;  // computing since the event before, without waits
  TileIndex tile = 0;
  Kind kind = Kind::kAcquire;
  Tier tier = Tier::kDevice;  // kDevice or kPinned; kDevice for a discard
  Access access = Access::kRead;
  uint16_t thread = 0;  // of an acquire: the caller's, numbered in order of first appearance
};

constexpr bool IsUse(const TraceEvent& event) { return event.kind != TraceEvent::Kind::kRelease; }

struct Trace {
  std::vector<TraceTile> tiles;
  std::vector<TraceEvent> events;
};

// The events of the running step. The log grows by pieces of fixed size, so that the cost of an
// append does not depend on the number of events. clear() keeps the pieces for reuse.
class EventLog {
 public:
  void push_back(const TraceEvent& event) {
    if (size_ == pieces_.size() * kPiece)
      pieces_.push_back(std::make_unique_for_overwrite<Piece>());
    std::construct_at(pieces_[size_ / kPiece]->events + size_ % kPiece, event);
    ++size_;
  }
  const TraceEvent& operator[](size_t index) const {
    return pieces_[index / kPiece]->events[index % kPiece];
  }
  size_t size() const { return size_; }
  void clear() { size_ = 0; }
  std::vector<TraceEvent> Events() const;

 private:
  static constexpr size_t kPiece = 4096;
  // The memory of events that were not added yet is not touched: the caller that adds the first
  // event of a piece may hold a lock.
  union Piece {
    Piece() {}  // NOLINT(modernize-use-equals-default): a default one would be deleted
    TraceEvent events[kPiece];
  };
  static_assert(std::is_trivially_destructible_v<TraceEvent>);
  std::vector<std::unique_ptr<Piece>> pieces_;
  size_t size_ = 0;
};

// Returns OK if the events can happen: the leases of a tile are readers or one writer, each ends
// once, none is held at the end, and only transient tiles that are not leased are discarded.
// InvalidArgument names the event, the tile and what is wrong.
absl::Status Validate(const Trace& trace);

// The fingerprint of a step, computed use by use. It is equal for steps in which each tile has the
// same uses (leases and discards) in the same order, and different, as a rule, for others. It does
// not depend on how uses of different tiles interleave, on times, on how readers overlap, or on
// which tiles had bytes before.
class StepHash {
 public:
  void AddTile(const TraceTile& tile);
  // Begins a step.
  void Begin() {
    ++step_;
    sum_ = 0;
  }
  // Adds a use. REQUIRES: `use` is an acquire or a discard.
  void Add(const TraceEvent& use);
  uint64_t value() const { return sum_; }

 private:
  // Kept small: if there are many tiles, each lease loads its tile's entry into the CPU's cache.
  struct Tile {
    uint64_t hash = 0;  // of the uses in `step`
    uint32_t step = 0;
    uint32_t is = 0;  // the hash of the tile's size, role and transience
  };
  base::StableArray<Tile> tiles_;  // growing it moves nothing
  uint32_t step_ = 1;
  uint64_t sum_ = 0;
};

// Records a step while it runs. Seconds are on any clock that does not go back. If threads overlap,
// an event that was requested before the last one ended follows it with no computing in between.
// Not thread-safe. A step:
//
//   recorder.Begin(now);
//   recorder.Acquire(tile, Tier::kDevice, Access::kRead, asked, granted);
//   recorder.Release(tile, Tier::kDevice, Access::kRead, now);
//   recorder.End()
class StepRecorder {
 public:
  // Adds a tile, which gets the next index.
  void AddTile(const TraceTile& tile) { hash_.AddTile(tile); }

  // Begins a step. Drops what was recorded of a step that did not end.
  void Begin(double now);
  // The time between `asked` and `granted` was spent waiting.
  void Acquire(TileIndex tile, Tier tier, Access access, double asked, double granted);
  void Release(TileIndex tile, Tier tier, Access access, double now);
  void Discard(TileIndex tile, double now);
  // Excludes the time from `begin` to `end` from computing, as for a commit or a wait for a plan.
  void LeaveOut(double begin, double end) { last_ += std::max(0.0, end - std::max(begin, last_)); }
  // Ends the step and returns its events. `other`, emptied, becomes the log of the next step.
  EventLog End(EventLog other);

  // These return values of the running step.
  size_t num_events() const { return events_.size(); }
  const TileBits& used() const { return used_; }
  int64_t num_leases() const { return num_leases_; }
  uint64_t fingerprint() const { return hash_.value(); }

 private:
  void Add(TraceEvent event, double now);
  uint16_t ThisThread();

  EventLog events_;
  TileBits used_;
  StepHash hash_;
  int64_t num_leases_ = 0;                // leases that have not ended
  std::vector<std::thread::id> threads_;  // this step's, by number
  double last_ = 0;  // the end of the event before, plus the time left out since
};

// A StepRecorder that also records the tiles, and so returns a whole trace.
class TraceRecorder : public StepRecorder {
 public:
  TileIndex AddTile(const TraceTile& tile);
  Trace End();

 private:
  std::vector<TraceTile> tiles_;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_TRACE_H_
