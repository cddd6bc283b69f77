// SPDX-License-Identifier: Apache-2.0

#include "src/plan/trace.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spillway::plan {
namespace {

using Kind = TraceEvent::Kind;

// The leases that are held on a tile.
struct Holders {
  uint32_t readers[2] = {0, 0};  // in the device tier, in pinned memory
  int8_t writer = -1;            // the writer's tier; -1: none
  Access access = Access::kRead;

  bool any() const { return readers[0] + readers[1] > 0 || writer >= 0; }
};

absl::Status Wrong(const Trace& trace, size_t index, const std::string& what) {
  const TraceEvent& event = trace.events[index];
  static constexpr const char* kNames[] = {"acquire", "release", "discard"};
  return absl::InvalidArgumentError(
      absl::StrCat("trace: event ", index, " (", kNames[static_cast<size_t>(event.kind)],
                   " of tile ", event.tile, " in ", std::string(Name(event.tier)), "): ", what));
}

// Applies the event to the tile's holders. Returns what is wrong with it, or an empty string.
std::string Apply(const TraceEvent& event, const TraceTile& tile, Holders& holders) {
  const auto tier = static_cast<int8_t>(event.tier);
  if (event.kind == Kind::kDiscard) {
    if (!tile.transient) return "the tile is not transient: only transient tiles are discarded";
    return holders.any() ? "the tile is leased: its leases must end first" : "";
  }
  if (event.tier == Tier::kNvme) return "leases are in device or pinned memory";
  if (event.kind == Kind::kAcquire) {
    if (holders.writer >= 0) return "the tile has a writer: its lease must end first";
    if (!Writes(event.access)) {
      ++holders.readers[tier];
      return "";
    }
    if (holders.any()) return "the tile has readers: a writer must be alone";
    holders.writer = tier;
    holders.access = event.access;
    return "";
  }
  if (!Writes(event.access)) {
    if (holders.readers[tier] == 0) return "there is no such lease to end";
    --holders.readers[tier];
    return "";
  }
  if (holders.writer != tier || holders.access != event.access)
    return "there is no such lease to end";
  holders.writer = -1;
  return "";
}

uint64_t Word(const TraceEvent& use) {
  return static_cast<uint64_t>(use.kind) << 16 | static_cast<uint64_t>(use.tier) << 8 |
         static_cast<uint64_t>(use.access);
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 29);
}

}  // namespace

absl::Status Validate(const Trace& trace) {
  if (trace.events.empty()) return absl::InvalidArgumentError("trace: it has no events");
  constexpr size_t kMaxEvents = size_t{1} << 28;  // fewer than 2^31 operations
  if (trace.events.size() > kMaxEvents) {
    return absl::InvalidArgumentError(absl::StrCat("trace: ", trace.events.size(),
                                                   " events; at most ", kMaxEvents,
                                                   " can be planned: use larger tiles"));
  }
  for (size_t i = 0; i < trace.tiles.size(); ++i) {
    if (trace.tiles[i].size_bytes > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("trace: tile ", i, " has no bytes"));
  }
  std::vector<Holders> holders(trace.tiles.size());
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.tile >= trace.tiles.size()) {
      return Wrong(trace, i, absl::StrCat("there are ", trace.tiles.size(), " tiles"));
    }
    if (!(event.seconds_before >= 0)) return Wrong(trace, i, "its time is before the last event's");
    std::string wrong = Apply(event, trace.tiles[event.tile], holders[event.tile]);
    if (!wrong.empty()) return Wrong(trace, i, wrong);
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    if (!holders[i].any()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("trace: tile ", i, " is leased at the end: a step ends with no lease held"));
  }
  return absl::OkStatus();
}

std::vector<TraceEvent> EventLog::Events() const {
  std::vector<TraceEvent> events;
  events.reserve(size_);
  for (size_t i = 0; i < size_; ++i) events.push_back((*this)[i]);
  return events;
}

void StepHash::AddTile(const TraceTile& tile) {
  const uint64_t is =
      Mix(tile.size_bytes, static_cast<uint64_t>(tile.role) << 1 | uint64_t{tile.transient});
  tiles_.emplace_back().is = static_cast<uint32_t>(is >> 32);
}

void StepHash::Add(const TraceEvent& use) {
  Tile& now = tiles_[use.tile];
  if (now.step == step_) {
    sum_ -= Mix(now.hash, 1);
  } else {
    now.step = step_;
    now.hash = Mix(use.tile, now.is);
  }
  now.hash = Mix(now.hash, Word(use) + 1);
  sum_ += Mix(now.hash, 1);
}

void StepRecorder::Begin(double now) {
  events_.clear();
  used_.Clear();
  threads_.clear();
  hash_.Begin();
  num_leases_ = 0;
  last_ = now;
}

void StepRecorder::Add(TraceEvent event, double now) {
  event.seconds_before = std::max(0.0, now - last_);
  events_.push_back(event);
  last_ = std::max(last_, now);
  num_leases_ += event.kind == Kind::kAcquire ? 1 : event.kind == Kind::kRelease ? -1 : 0;
  if (!IsUse(event)) return;
  used_.Set(event.tile);
  hash_.Add(event);
}

uint16_t StepRecorder::ThisThread() {
  const std::thread::id thread = std::this_thread::get_id();
  const auto found = std::ranges::find(threads_, thread);
  if (found != threads_.end()) return static_cast<uint16_t>(found - threads_.begin());
  constexpr size_t kMost = std::numeric_limits<uint16_t>::max();
  if (threads_.size() == kMost) return kMost;
  threads_.push_back(thread);
  return static_cast<uint16_t>(threads_.size() - 1);
}

void StepRecorder::Acquire(TileIndex tile, Tier tier, Access access, double asked, double granted) {
  Add({.tile = tile,
       .kind = Kind::kAcquire,
       .tier = tier,
       .access = access,
       .thread = ThisThread()},
      asked);
  last_ = std::max(last_, granted);
}

void StepRecorder::Release(TileIndex tile, Tier tier, Access access, double now) {
  Add({.tile = tile, .kind = Kind::kRelease, .tier = tier, .access = access}, now);
}

void StepRecorder::Discard(TileIndex tile, double now) {
  Add({.tile = tile, .kind = Kind::kDiscard}, now);
}

EventLog StepRecorder::End(EventLog other) {
  std::swap(events_, other);
  events_.clear();
  return other;
}

TileIndex TraceRecorder::AddTile(const TraceTile& tile) {
  StepRecorder::AddTile(tile);
  tiles_.push_back(tile);
  return static_cast<TileIndex>(tiles_.size() - 1);
}

Trace TraceRecorder::End() { return {tiles_, StepRecorder::End({}).Events()}; }

}  // namespace spillway::plan
