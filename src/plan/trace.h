// SPDX-License-Identifier: Apache-2.0
//
// The trace of a step: which tiles are leased, in which order and with how much computing between,
// as the planner reads it. A step that repeats has the same trace but for the times. Pure values;
// times are passed in.

#ifndef SPILLWAY_PLAN_TRACE_H_
#define SPILLWAY_PLAN_TRACE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "spillway/types.h"
#include "src/plan/tile_bits.h"

namespace spillway::plan {

// A frame that is one tile's own all the time.
struct ReservedFrame {
  Tier tier = Tier::kPinned;  // or kDevice
  uint64_t offset = 0;
  friend bool operator==(const ReservedFrame&, const ReservedFrame&) = default;
};

struct TraceTile {
  uint64_t size_bytes = 0;
  Role role = Role::kParameter;
  bool transient = false;
  // It has bytes when the step starts (on NVMe, if nothing moved yet). If not, it reads as zeros.
  bool stored = false;
  std::optional<Tier> rest;                     // see Placement
  std::optional<ReservedFrame> reserved_frame;  // where it rests, if that is one of the two tiers

  bool has_reserved_frame(Tier tier) const {
    return reserved_frame && reserved_frame->tier == tier;
  }
};

struct TraceEvent {
  enum class Kind : uint8_t {
    kAcquire,
    kRelease,
    kDiscard,  // of a transient tile: its bytes are void, it reads as zeros
  };
  double seconds_before = 0;  // computing since the event before, waits left out
  TileIndex tile = 0;
  Kind kind = Kind::kAcquire;
  Tier tier = Tier::kDevice;  // kDevice or kPinned; of a discard, kDevice
  Access access = Access::kRead;
  uint16_t thread = 0;  // of the caller, numbered in the order in which they come
};

struct Trace {
  std::vector<TraceTile> tiles;
  std::vector<TraceEvent> events;
};

// The events of a step that runs. It grows by pieces, so that no event takes longer than others,
// and is emptied without giving them back.
class EventLog {
 public:
  void push_back(const TraceEvent& event) {
    if (size_ == pieces_.size() * kPiece) pieces_.push_back(std::make_unique<Piece>());
    (*pieces_[size_ / kPiece])[size_ % kPiece] = event;
    ++size_;
  }
  const TraceEvent& operator[](size_t index) const {
    return (*pieces_[index / kPiece])[index % kPiece];
  }
  size_t size() const { return size_; }
  void clear() { size_ = 0; }
  std::vector<TraceEvent> Events() const;

 private:
  static constexpr size_t kPiece = 4096;
  using Piece = std::array<TraceEvent, kPiece>;
  std::vector<std::unique_ptr<Piece>> pieces_;
  size_t size_ = 0;
};

// OK if the events can happen: leases of a tile are readers or one writer, each ends once, none is
// held at the end, and only what is transient and not leased is discarded. InvalidArgument names
// the event, the tile and what is wrong. Cancelled once `stop` is true.
absl::Status Validate(const Trace& trace, const std::atomic<bool>* stop = nullptr);

// The fingerprint of a step, use by use. It is equal for steps in which each tile has the same uses
// (leases and discards) in the same order, and different, as a rule, for others. How uses of
// different tiles interleave does not count, nor do times, nor how readers overlap, nor which tiles
// had bytes before.
class StepHash {
 public:
  void AddTile(const TraceTile& tile);
  // A step begins.
  void Begin() {
    ++step_;
    sum_ = 0;
  }
  // What comes is a use.
  void Add(const TraceEvent& use);
  uint64_t value() const { return sum_; }

 private:
  // Small: a lease of one among many tiles brings it into the CPU's cache.
  struct Tile {
    uint64_t hash = 0;  // of the uses in `step`
    uint32_t step = 0;
    uint32_t is = 0;  // the hash of what the tile is
  };
  std::vector<Tile> tiles_;
  uint32_t step_ = 1;
  uint64_t sum_ = 0;
};

// Writes a step down while it runs. Seconds are on any clock that does not go back; where threads
// overlap, an event that was asked for before the last one ended comes right after it. Not
// thread-safe. A step:
//
//   recorder.Begin(now);
//   recorder.Acquire(tile, Tier::kDevice, Access::kRead, asked, granted);
//   recorder.Release(tile, Tier::kDevice, Access::kRead, now);
//   recorder.End()
class StepRecorder {
 public:
  // A new tile, of the next index.
  void AddTile(const TraceTile& tile) { hash_.AddTile(tile); }

  // A step begins; what was recorded of one that did not end is forgotten.
  void Begin(double now);
  // The time between `asked` and `granted` was spent waiting.
  void Acquire(TileIndex tile, Tier tier, Access access, double asked, double granted,
               std::thread::id thread = std::this_thread::get_id());
  void Release(TileIndex tile, Tier tier, Access access, double now,
               std::thread::id thread = std::this_thread::get_id());
  void Discard(TileIndex tile, double now);
  // From `begin` to `end` nothing was computed, as during a commit or a wait for a plan.
  void LeaveOut(double begin, double end) { last_ += std::max(0.0, end - std::max(begin, last_)); }
  // The step is over: its events, in exchange for a log that may be used for the next.
  EventLog End(EventLog other);

  // Of the step that runs.
  size_t num_events() const { return events_.size(); }
  const TileBits& used() const { return used_; }
  int64_t num_leases() const { return num_leases_; }
  uint64_t fingerprint() const { return hash_.value(); }

 private:
  void Add(TraceEvent event, double now);
  uint16_t NumberOf(std::thread::id thread);

  EventLog events_;
  TileBits used_;
  StepHash hash_;
  int64_t num_leases_ = 0;                // that have not ended
  std::vector<std::thread::id> threads_;  // by number, of this step
  double last_ = 0;  // when the event before ended, later by what was left out since
};

// The same, with the tiles: a whole trace.
class TraceRecorder : public StepRecorder {
 public:
  TileIndex AddTile(const TraceTile& tile);
  Trace End();

 private:
  std::vector<TraceTile> tiles_;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_TRACE_H_
