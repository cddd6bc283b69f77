// SPDX-License-Identifier: Apache-2.0

#include "src/plan/reserve.h"

#include <algorithm>
#include <deque>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "src/base/bytes.h"

namespace spillway::plan {
namespace {

// Bytes of leases in one tier.
struct Held {
  uint64_t now = 0;
  uint64_t peak = 0;
  void Add(uint64_t bytes) { peak = std::max(peak, now += bytes); }
};

uint64_t ReserveOf(const Trace& trace, Tier tier, uint64_t frame_alignment) {
  std::map<uint16_t, Held> threads;
  Held all;
  uint64_t largest = 0;
  absl::flat_hash_map<TileIndex, std::deque<uint16_t>> holders;  // threads with leases in the tier
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceEvent::Kind::kDiscard) continue;
    const TraceTile& tile = trace.tiles[event.tile];
    const uint64_t bytes =
        tile.has_reserved_frame(tier) ? 0 : base::RoundUp(tile.size_bytes, frame_alignment);
    // A tile that is leased on the device passes through pinned memory.
    if (event.tier == tier || tier == Tier::kPinned) largest = std::max(largest, bytes);
    const bool acquires = event.kind == TraceEvent::Kind::kAcquire;
    if (acquires) (void)threads[event.thread];
    if (event.tier != tier) continue;
    if (acquires) {
      holders[event.tile].push_back(event.thread);
      threads[event.thread].Add(bytes);
      all.Add(bytes);
    } else {
      // The thread that ends a lease need not be the one that took it.
      const auto held = holders.find(event.tile);
      threads[held->second.front()].now -= bytes;
      held->second.pop_front();
      if (held->second.empty()) holders.erase(held);
      all.now -= bytes;
    }
  }
  if (threads.size() <= 1) return 0;
  uint64_t peaks = 0;
  for (const auto& [thread, held] : threads) peaks += held.peak;
  return peaks - all.peak + threads.size() * largest;
}

}  // namespace

Reserve ReserveFor(const Trace& trace, uint64_t frame_alignment) {
  const auto is_first = [&](const TraceEvent& event) { return event.thread == 0; };
  if (std::ranges::all_of(trace.events, is_first)) return {};
  return {.device_bytes = ReserveOf(trace, Tier::kDevice, frame_alignment),
          .pinned_bytes = ReserveOf(trace, Tier::kPinned, frame_alignment)};
}

}  // namespace spillway::plan
