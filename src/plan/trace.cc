// SPDX-License-Identifier: Apache-2.0

#include "src/plan/trace.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spillway::plan {
namespace {

using Kind = TraceEvent::Kind;

// Who holds a tile.
struct Holders {
  uint32_t readers[2] = {0, 0};  // in the device tier, in pinned memory
  int8_t writer = -1;            // the writer's tier
  Access access = Access::kRead;

  bool any() const { return readers[0] + readers[1] > 0 || writer >= 0; }
};

absl::Status Wrong(const Trace& trace, size_t index, const std::string& what) {
  const TraceEvent& event = trace.events[index];
  static constexpr std::string_view kNames[] = {"acquire", "release", "discard"};
  const std::string_view kind = kNames[static_cast<size_t>(event.kind)];
  return absl::InvalidArgumentError(absl::StrCat("trace: event ", index, " (", std::string(kind),
                                                 " of tile ", event.tile, " in ",
                                                 std::string(Name(event.tier)), "): ", what));
}

// Takes the event into account; what is wrong with it, or nothing.
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

bool SameEvent(const TraceEvent& a, const TraceEvent& b) {
  return a.tile == b.tile && a.kind == b.kind && a.tier == b.tier && a.access == b.access;
}

// By tile: whether the step writes it. What is written has bytes in every step but the first.
std::vector<bool> Written(const Trace& trace) {
  std::vector<bool> written(trace.tiles.size());
  for (const TraceEvent& event : trace.events) {
    if (event.kind == Kind::kAcquire && Writes(event.access)) written[event.tile] = true;
  }
  return written;
}

bool SameTile(const TraceTile& a, const TraceTile& b, bool written) {
  return a.size_bytes == b.size_bytes && a.role == b.role && a.transient == b.transient &&
         (written || a.stored == b.stored);
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 29);
}

}  // namespace

absl::Status Validate(const Trace& trace) {
  if (trace.events.empty()) return absl::InvalidArgumentError("trace: it has no events");
  constexpr size_t kMaxEvents = size_t{1} << 30;
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

bool SameStep(const Trace& a, const Trace& b) {
  if (a.tiles.size() != b.tiles.size() ||
      !std::equal(a.events.begin(), a.events.end(), b.events.begin(), b.events.end(), SameEvent)) {
    return false;
  }
  const std::vector<bool> written = Written(a);
  for (size_t i = 0; i < a.tiles.size(); ++i) {
    if (!SameTile(a.tiles[i], b.tiles[i], written[i])) return false;
  }
  return true;
}

uint64_t Fingerprint(const Trace& trace) {
  uint64_t hash = Mix(trace.tiles.size(), trace.events.size());
  const std::vector<bool> written = Written(trace);
  for (size_t i = 0; i < trace.tiles.size(); ++i) {
    const TraceTile& tile = trace.tiles[i];
    const bool stored = tile.stored && !written[i];
    hash = Mix(hash, tile.size_bytes);
    hash = Mix(hash, static_cast<uint64_t>(tile.role) << 2 | uint64_t{tile.transient} << 1 |
                         uint64_t{stored});
  }
  for (const TraceEvent& event : trace.events) {
    hash =
        Mix(hash, uint64_t{event.tile} << 24 | static_cast<uint64_t>(event.kind) << 16 |
                      static_cast<uint64_t>(event.tier) << 8 | static_cast<uint64_t>(event.access));
  }
  return hash;
}

TileIndex TraceRecorder::AddTile(const TraceTile& tile) {
  trace_.tiles.push_back(tile);
  return static_cast<TileIndex>(trace_.tiles.size() - 1);
}

void TraceRecorder::Begin(double now) {
  trace_.events.clear();
  last_ = now;
}

void TraceRecorder::Add(TraceEvent event, double now) {
  event.seconds_before = std::max(0.0, now - last_);
  trace_.events.push_back(event);
  last_ = std::max(last_, now);
}

void TraceRecorder::Acquire(TileIndex tile, Tier tier, Access access, double asked,
                            double granted) {
  Add({.tile = tile, .kind = Kind::kAcquire, .tier = tier, .access = access}, asked);
  last_ = std::max(last_, granted);
}

void TraceRecorder::Release(TileIndex tile, Tier tier, Access access, double now) {
  Add({.tile = tile, .kind = Kind::kRelease, .tier = tier, .access = access}, now);
}

void TraceRecorder::Discard(TileIndex tile, double now) {
  Add({.tile = tile, .kind = Kind::kDiscard}, now);
}

Trace TraceRecorder::End() {
  Trace trace{trace_.tiles, {}};
  trace.events.swap(trace_.events);
  return trace;
}

}  // namespace spillway::plan
